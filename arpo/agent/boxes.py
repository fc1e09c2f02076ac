"""Positions as models write them: two numbers, or four for a box, in brackets and tags of several model families."""

import math
import re

from arpo.agent.syntax import TAGS, ParseErrorKind
from arpo.errors import ActionParseError

MAX_COORDINATE = 100_000.0
"""No screen is larger; beyond this a number is not a position."""

_MAX_CHARACTERS = 200
_TOKEN = re.compile(r"[()\[\],]|[^()\[\],\s]+")
_NUMBER_CHARACTERS = frozenset("0123456789.+-eE")

# The shapes of a position with a number written `n`: every one that a model is known to write, and no other.
_PAIRS = ("nn", "n,n")
_BOXES = ("nnnn", "n,n,n,n", "(n,n),(n,n)", "(n,n)(n,n)", "[n,n],[n,n]")
_BARE = _PAIRS + _BOXES
_SHAPES = frozenset(_BARE) | {f"({shape})" for shape in _BARE} | {f"[{shape}]" for shape in _BARE}


def read_point(text: str) -> tuple[float, float]:
    """Return the position that a text names: the point itself, or the centre of a box.

    Raises:
        ActionParseError: `bad_box`.
    """
    if len(text) > _MAX_CHARACTERS:
        raise _bad_box(text[:40] + "…", "is too long")
    tokens = _TOKEN.findall(_without_tags(text))
    if "".join(token if token in "()[]," else "n" for token in tokens) not in _SHAPES:
        raise _bad_box(text, "is not (x,y) or (x1,y1,x2,y2)")
    numbers = [_coordinate(token, text) for token in tokens if token not in "()[],"]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    return (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2


def _without_tags(text: str) -> str:
    text = text.strip()
    for opening, closing in TAGS.items():
        if text.startswith(opening) and text.endswith(closing):
            text = text[len(opening) : -len(closing)].strip()
    return text


def _coordinate(token: str, text: str) -> float:
    # float() alone would take "nan", "1_0" and the digits of every script.
    if not _NUMBER_CHARACTERS.issuperset(token):
        raise _bad_box(text, f"has {token!r} for a number")
    try:
        number = float(token)
    except ValueError as error:
        raise _bad_box(text, f"has {token!r} for a number") from error
    if not math.isfinite(number) or abs(number) > MAX_COORDINATE:
        raise _bad_box(text, f"has the number {token}, beyond {MAX_COORDINATE:g}")
    return number


def _bad_box(text: str, problem: str) -> ActionParseError:
    return ActionParseError(ParseErrorKind.BAD_BOX, f"the position {text!r} {problem}")
