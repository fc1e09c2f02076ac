"""This machine: processes, containers, files."""
