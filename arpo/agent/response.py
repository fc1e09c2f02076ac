"""The parts of a response that grammars share: its content, the reasons to refuse it, positions, spare arguments."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NoReturn

from arpo.agent.actions import MAX_COORDINATE, Action, Hotkey, Point
from arpo.agent.keys import canonical_key
from arpo.errors import ActionParseError

MAX_CHARACTERS = 1_000_000
"""A response of 8,192 tokens is far below; above, nothing is read."""
MAX_HOTKEY_CHARACTERS = 100
THOUGHT_ENDS = "</think>"
"""What a model that thinks writes behind its thought, which may draft calls and name tags."""
TAGS = {"<|box_start|>": "<|box_end|>", "<point>": "</point>", "<bbox>": "</bbox>"}
"""Tags around a position, with what closes them."""

_MAX_POSITION = 200
_TOKEN = re.compile(r"[()\[\],]|[^()\[\],\s]+")
_NUMBER_CHARACTERS = frozenset("0123456789.+-eE")

# A Chinese keyboard's forms of what a position is written in, as in `（１００，２００）`. No digits of other scripts.
_FULL_WIDTH = str.maketrans("０１２３４５６７８９．，－＋（）［］、", "0123456789.,-+()[],")

# The shapes of a position with a number written `n`: every one that a model is known to write, and no other. The
# brackets around the whole do not count, one or two: the authors' parser takes out every bracket before it splits.
_SHAPES = frozenset(("nn", "n,n", "nnnn", "n,n,n,n", "n,n),(n,n", "n,n)(n,n", "n,n],[n,n"))

_CHANGING = frozenset(
    ("button", "click", "clicks", "count", "times", "repeat", "presses", "num", "double", "type",
     "modifier", "modifiers", "hold", "key", "keys", "hotkey", "ctrl", "shift", "alt",
     "press", "enter", "submit", "overwrite", "replace", "direction", "axis", "horizontal", "vertical",
     "start", "end", "from", "to", "source", "target", "destination")
)  # fmt: skip
"""Words in the name of an argument that says how to do something, or where: it is not done without."""
_NOTHING = frozenset(("", "left", "0", "1", "none", "null", "false", "[]"))
"""Values that ask for nothing that is not done anyway."""
BLANK = frozenset(("", "[]", "null", "None"))
"""Values that stand there for form's sake."""
_WORD = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+")


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


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The content of a response, part by part."""

    thought: str
    actions: tuple[Action, ...]
    """At least one; coordinates in model pixels."""


def refuse(kind: ParseErrorKind, message: str) -> NoReturn:
    """Raise the error of a response that is no action."""
    raise ActionParseError(kind, message)


def check_length(text: str, what: str, limit: int, kind: ParseErrorKind) -> None:
    """Refuse a text with more characters than it may have."""
    if len(text) > limit:
        refuse(kind, f"the {what} has {len(text)} characters, more than {limit}")


def check_extra(action: str, extra: Mapping[str, str], *, incomplete: bool, others: Collection[str] = ()) -> None:
    """Refuse arguments that an action does not take, where something else would happen if they were regarded.

    Models add some, and every grammar ignores what changes nothing. `incomplete` says that the action lacks an
    argument that it may have, whose name one of these may misspell; with `others` other actions do something.
    """
    for name, value in extra.items():
        asks = value.strip() not in BLANK if name in others else value.strip().lower() not in _NOTHING
        changes = name in others or incomplete or not _CHANGING.isdisjoint(map(str.lower, _WORD.findall(name)))
        if asks and changes:
            refuse(ParseErrorKind.BAD_ARGUMENT, f"{action} takes no {name[:40]}, got {value[:40]!r}")


def read_key(name: str) -> str:
    """Return the canonical name of a key."""
    key = canonical_key(name)
    if key is None:
        refuse(ParseErrorKind.BAD_ARGUMENT, f"unknown key {name[:40]!r}")
    return key


def read_hotkey(names: Iterable[str]) -> Hotkey:
    """Return the keys that are pressed together: `Ctrl C` names the key C and does not mean ctrl+shift+c."""
    keys = tuple(map(read_key, names))
    return Hotkey(tuple(map(str.lower, keys)) if len(keys) > 1 else keys)


def read_point(text: str) -> Point:
    """Return the position that a text names, in brackets or tags: the point itself, or the centre of a box."""
    if len(text) > _MAX_POSITION:
        _refuse_position(text[:40] + "…", "is too long")
    # The authors' prompt for grounding has a quote too many: `click(point='<point>x1 y1</point>'')`.
    bare = text.translate(_FULL_WIDTH).strip().removesuffix("'").strip()
    for opening, closing in TAGS.items():
        if bare.startswith(opening) and bare.endswith(closing):
            bare = bare[len(opening) : -len(closing)].strip()
    tokens = _TOKEN.findall(bare)
    shape = "".join(token if token in "()[]," else "n" for token in tokens)
    if shape.lstrip("([").rstrip(")]") not in _SHAPES:
        _refuse_position(text, "is not (x,y) or (x1,y1,x2,y2)")
    numbers = [_coordinate(token, text) for token in tokens if token not in "()[],"]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    return (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2


def _coordinate(token: str, text: str) -> float:
    # float() alone would take "nan", "1_0" and the digits of every script.
    number = math.nan
    if _NUMBER_CHARACTERS.issuperset(token):
        with suppress(ValueError):
            number = float(token)
    if math.isnan(number):
        _refuse_position(text, f"has {token!r} for a number")
    if abs(number) > MAX_COORDINATE:
        _refuse_position(text, f"has the number {token}, beyond {MAX_COORDINATE:g}")
    return number


def _refuse_position(text: str, problem: str) -> NoReturn:
    refuse(ParseErrorKind.BAD_BOX, f"the position {text!r} {problem}")
