"""Pure mathematics: tensors and numbers in, tensors and numbers out."""
