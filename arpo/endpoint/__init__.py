"""The way in for a foreign agent: dialects of HTTP, and its conversations as ids."""
