"""Documents, and what a person would have made of them."""

from collections.abc import Callable, Mapping

BUILDERS: Mapping[str, Callable[..., None]] = {}
