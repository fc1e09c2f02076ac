"""Desktops that an agent can act in, and the pool that keeps them alive."""
