"""Positions as models write them: two numbers, or four for a box, in brackets and tags of several model families."""

import math
import re

from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.syntax import TAGS
from arpo.errors import ActionParseError

MAX_COORDINATE = 100_000.0
"""No screen is larger; beyond this a number is not a position."""

_MAX_CHARACTERS = 200
_TOKEN = re.compile(r"[()\[\],]|[^()\[\],\s]+")
_NUMBER_CHARACTERS = frozenset("0123456789.+-eE")

# A Chinese keyboard's forms of what a position is written in, as in `（１００，２００）`. No digits of other scripts.
_FULL_WIDTH = str.maketrans("０１２３４５６７８９．，－＋（）［］、", "0123456789.,-+()[],")

# The shapes of a position with a number written `n`: every one that a model is known to write, and no other. The
# brackets around the whole do not count, one or two: the authors' parser takes out every bracket before it splits.
_SHAPES = frozenset(("nn", "n,n", "nnnn", "n,n,n,n", "n,n),(n,n", "n,n)(n,n", "n,n],[n,n"))


def read_point(text: str) -> tuple[float, float]:
    """Return the position that a text names: the point itself, or the centre of a box.

    Raises:
        ActionParseError: `bad_box`.
    """
    if len(text) > _MAX_CHARACTERS:
        raise _bad_box(text[:40] + "…", "is too long")
    tokens = _TOKEN.findall(_without_tags(text.translate(_FULL_WIDTH)))
    shape = "".join(token if token in "()[]," else "n" for token in tokens)
    if shape.lstrip("([").rstrip(")]") not in _SHAPES:
        raise _bad_box(text, "is not (x,y) or (x1,y1,x2,y2)")
    numbers = [_coordinate(token, text) for token in tokens if token not in "()[],"]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    return (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2


def _without_tags(text: str) -> str:
    # The authors' prompt for grounding has a quote too many: `click(point='<point>x1 y1</point>'')`.
    text = text.strip().removesuffix("'").strip()
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
