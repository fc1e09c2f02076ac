"""The client of a desktop's guest server."""
