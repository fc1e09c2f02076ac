"""A method of learning for ARPO."""
