"""Families of models: a file holds all that is true of one, and gives it as FAMILY; its name is its `model_type`."""
