"""The dialects that foreign agents speak, each in one file: bytes to a question, an answer to bytes."""
