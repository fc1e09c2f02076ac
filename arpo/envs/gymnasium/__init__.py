"""Environments that are registered with Gymnasium, by name."""
