"""Bounds of constructor arguments, with the words that a person needs."""

from typing import Any, get_args

from arpo.errors import ConfigError


def check_at_least(bound: float, **values: float) -> None:
    """Refuse a value below `bound`.

    Raises:
        ConfigError: Names the argument, its value and the bound.
    """
    for name, value in values.items():
        if not value >= bound:
            raise ConfigError(f"{name} must be at least {bound}, got {value}")


def check_positive(**values: float) -> None:
    """Refuse a value that is not above 0.

    Raises:
        ConfigError: Names the argument and its value.
    """
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value}")


def check_one_of(choices: Any, **values: str) -> None:
    """Refuse a value that is not one of the strings of a `Literal`.

    Raises:
        ConfigError: Names the argument, its value and what is allowed.
    """
    for name, value in values.items():
        if value not in get_args(choices):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")
