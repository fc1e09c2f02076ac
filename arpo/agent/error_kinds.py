"""The reasons why a response is refused."""

from enum import StrEnum, auto


class ParseErrorKind(StrEnum):
    """The reasons why a response is not an action. A closed set: each kind is one counter in the metrics."""

    EMPTY = auto()
    """The response holds nothing but white space."""
    TOO_LONG = auto()
    """The response has more characters than any model may write, or more actions than the settings allow."""
    NO_ACTION = auto()
    """There is no `Action:` and the response is more than calls, or nothing stands after it."""
    BAD_SYNTAX = auto()
    """The text after `Action:` is not a list of calls with named arguments, one a line."""
    UNKNOWN_ACTION = auto()
    """A call has a name that is not in the action space."""
    MISSING_ARGUMENT = auto()
    """A call lacks an argument, or the argument is empty."""
    BAD_ARGUMENT = auto()
    """A call has an argument twice, or one with a value that is not allowed: a key, a direction."""
    BAD_CALL = auto()
    """A call of a function lacks the function's name, or has a value that is no quoted text, no number, and neither
    true nor false. Whether the desktop has the function is no matter of syntax."""
    BAD_BOX = auto()
    """A position is not two or four plain numbers of a sensible size."""
