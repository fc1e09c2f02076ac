"""Text to action and back, without any input or output."""
