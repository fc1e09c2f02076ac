"""The actions of an agent, and the way of their points between a screen and the picture of it that a model sees.

An action describes itself: by the call as which it is recorded, its points, and its other details. What records,
compares and draws actions knows no kind of them, so that another kind is a class, a line in its grammar's table, and
what its environment does with it. Coordinates are pixels; which pixels, the holder knows.
"""

import math
import re
import unicodedata
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, cast

from typing_extensions import override

from arpo.agent.keys import known_key
from arpo.errors import ConfigError

Point = tuple[float, float]
Move = Callable[[float, float], Point]
Direction = Literal["up", "down", "left", "right"]
Button = Literal["left", "middle", "right"]
Scalar = str | int | float | bool

INTEGER_DIGITS = 15
"""The most digits of a whole number in a call: a float of as many is exact too."""
MAX_COORDINATE = 100_000.0
"""No screen is larger; beyond this a number is not a position."""
MAX_RATIO = 200
"""How many times longer than the other a side of an image may be: the limit of the image processors."""
POINTER = "pointer"
"""The place where the pointer is: our own word, for actions of other grammars, which need not name a place."""

CLICKS = {
    ("left", 1): "click",
    ("left", 2): "left_double",
    ("right", 1): "right_single",
    ("middle", 1): "middle_click",
}
"""The names under which clicks are recorded, by button and count."""
_ESCAPED = str.maketrans({"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_SPELLED = {"+": "plus", "-": "minus"}
"""Keys that are spelled out, because between other keys the bare sign would read as a joint ("ctrl + z")."""


@dataclass(frozen=True, slots=True)
class Action(ABC):
    """An action of an agent, as a frozen record: a subclass is a dataclass too where it has fields of its own."""

    NAME: ClassVar[str]
    """The name under which it is recorded."""

    def describe(self) -> str:
        """Return the call as which the action is recorded, which `arpo.agent.ui_tars.parse_action` reads."""
        arguments = ", ".join(f"{name}={value}" for name, value in self.written().items())
        return f"{self.NAME}({arguments})"

    def written(self) -> dict[str, str]:
        """Return the arguments of that call as they are written."""
        return {}

    @property
    def kind(self) -> object:
        """The kind, in which two actions must agree to be compared: the class, or two clicks of one button."""
        return type(self)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points that the action names, in order; the pointer stays at the last."""
        return ()

    @property
    def details(self) -> dict[str, str]:
        """The arguments that are no points, in which two actions of a kind must agree to be the same."""
        return {name: value for name, value in self.written().items() if name not in ("start_box", "end_box")}

    def moved(self, move: Move) -> Self:
        """Return the action with every point of it moved, such as to the pixels of another picture."""
        return self

    def begun_at(self, pointer: Point | None) -> Self:
        """Return a click or a drag that names no place as one at the pointer, where its place is known."""
        return self

    def pointer_after(self, before: Point | None) -> Point | None:
        """Return the place of the pointer after the action; None where it is not known."""
        return self.points[-1] if self.points else before


class Terminal(Action):
    """An action after which the episode ends."""


class Pointing(Action):
    """An action of the mouse, at a point or where the pointer is."""

    x: float | None
    y: float | None

    @property
    def start(self) -> tuple[Point, ...]:
        """The point where it begins; none where the pointer is."""
        return () if self.x is None or self.y is None else ((self.x, self.y),)

    @property
    @override
    def points(self) -> tuple[Point, ...]:
        return self.start

    @override
    def written(self) -> dict[str, str]:
        return {"start_box": _point(*self.start[0]) if self.start else f"'{POINTER}'"}

    @override
    def moved(self, move: Move) -> Self:
        return self._from(move(*self.start[0])) if self.start else self

    @override
    def begun_at(self, pointer: Point | None) -> Self:
        return self if self.start or pointer is None else self._from(pointer)

    def _from(self, point: Point) -> Self:
        return cast(Self, replace(cast(Any, self), x=point[0], y=point[1]))


@dataclass(frozen=True, slots=True)
class Click(Pointing):
    """A press and release of a button, or two; the middle one opens a link in a new tab, or pastes a selection."""

    x: float | None = None
    y: float | None = None
    button: Button = "left"
    count: Literal[1, 2] = 1

    @property
    @override
    def kind(self) -> object:
        return Click, self.button, self.count

    @override
    def describe(self) -> str:
        if (self.button, self.count) not in CLICKS:
            raise ValueError(f"no grammar has a click with button={self.button} and count={self.count}")
        return f"{CLICKS[self.button, self.count]}(start_box={self.written()['start_box']})"


@dataclass(frozen=True, slots=True)
class Hover(Pointing):
    """A move of the pointer."""

    NAME = "hover"
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Drag(Pointing):
    """A press of the left button at one point, or where the pointer is, and its release at another."""

    NAME = "drag"
    x: float | None
    y: float | None
    to_x: float
    to_y: float

    @property
    @override
    def points(self) -> tuple[Point, ...]:
        return (*self.start, (self.to_x, self.to_y))

    @override
    def written(self) -> dict[str, str]:
        return {**Pointing.written(self), "end_box": _point(self.to_x, self.to_y)}

    @override
    def moved(self, move: Move) -> Self:
        begun = Pointing.moved(self, move)
        to_x, to_y = move(self.to_x, self.to_y)
        return replace(begun, to_x=to_x, to_y=to_y)


@dataclass(frozen=True, slots=True)
class Scroll(Pointing):
    """A turn of the wheel."""

    NAME = "scroll"
    direction: Direction
    x: float | None = None
    y: float | None = None

    @override
    def written(self) -> dict[str, str]:
        return {**(Pointing.written(self) if self.start else {}), "direction": f"'{self.direction}'"}

    @override
    def begun_at(self, pointer: Point | None) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Hotkey(Action):
    """Keys that are pressed together, in order, and released in reverse."""

    NAME = "hotkey"
    keys: tuple[str, ...]

    @override
    def written(self) -> dict[str, str]:
        if not self.keys:
            raise ValueError("a hotkey needs at least one key, got none")
        if len(self.keys) > 1 and any(key != key.lower() for key in self.keys):
            raise ValueError(f"the keys of a hotkey are lower case, got {self.keys!r}; add 'shift' for a capital")
        return {"key": quote(" ".join(map(_spelled, self.keys)))}


@dataclass(frozen=True, slots=True)
class _OneKey(Action):
    key: str

    @override
    def written(self) -> dict[str, str]:
        return {"key": quote(_spelled(self.key))}


class Press(_OneKey):
    """A press and release of one key."""

    NAME = "press"

    @property
    @override
    def kind(self) -> object:
        return Hotkey  # a key pressed is a hotkey of one key


class KeyDown(_OneKey):
    """The press of a key that stays held."""

    NAME = "keydown"


class KeyUp(_OneKey):
    """The release of a held key."""

    NAME = "keyup"


@dataclass(frozen=True, slots=True)
class TypeText(Action):
    """Text that is typed as it is; a newline presses Enter."""

    NAME = "type"
    text: str

    @property
    @override
    def details(self) -> dict[str, str]:
        # Whatever the forms of its letters and the lengths of its white space, but for the newline that presses Enter.
        words = " ".join(unicodedata.normalize("NFKC", self.text).split())
        return {"text": words, "end": "\n" * self.text.endswith("\n")}

    @override
    def written(self) -> dict[str, str]:
        return {"content": quote(self.text)}


class Wait(Action):
    """A pause in which the desktop works, and another look."""

    NAME = "wait"


@dataclass(frozen=True, slots=True)
class Call(Action):
    """A call of a function that the desktop has (arXiv 2508.14040). What it cannot perform does nothing.

    An argument is no position: nothing takes it from the model's picture to the screen.
    """

    NAME = "call"
    function: str
    arguments: Mapping[str, Scalar] = field(default_factory=dict, hash=False)

    @override
    def written(self) -> dict[str, str]:
        if not self.function:
            raise ValueError("a call needs the name of a function, got none")
        for name in self.arguments:
            if name == "function" or not re.fullmatch(r"\w+", name):
                raise ValueError(f"an argument of a call must be a word other than 'function', got {name!r}")
        return {"function": quote(self.function), **{name: _scalar(value) for name, value in self.arguments.items()}}


@dataclass(frozen=True, slots=True)
class Finished(Terminal):
    """The claim that the task is done, with what the user is to know."""

    NAME = "finished"
    content: str = ""

    @override
    def written(self) -> dict[str, str]:
        return {"content": quote(self.content)} if self.content else {}

    @property
    @override
    def details(self) -> dict[str, str]:
        return {}  # the text for the user does not count


class CallUser(Terminal):
    """The return of the task to the user."""

    NAME = "call_user"


class Fail(Terminal):
    """The claim that the task is infeasible (`error_env` in UI-TARS's grammar)."""

    NAME = "error_env"


def quote(text: str) -> str:
    """Return a text as a call has it, in quotes."""
    return f"'{text.translate(_ESCAPED)}'"


def plain_point(x: float, y: float) -> list[float]:
    """Return a position in plain numbers of a sensible size, whole ones as integers."""
    for value in (x, y):
        if not math.isfinite(value) or abs(value) > MAX_COORDINATE:
            raise ValueError(f"a position must be a number between ±{MAX_COORDINATE:g}, got {value!r}")
    return [int(value) if value == int(value) else float(value) for value in (x, y)]


def _point(x: float, y: float) -> str:
    return "'({!r},{!r})'".format(*plain_point(x, y))


def _spelled(key: str) -> str:
    return _SPELLED.get(known_key(key), key)


def _scalar(value: Scalar) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if abs(value) >= 10**INTEGER_DIGITS if isinstance(value, int) else not math.isfinite(value):
        raise ValueError(f"a number must be finite, and a whole one have at most {INTEGER_DIGITS} digits")
    return repr(value)


# --- a screen and its picture ---------------------------------------------------------------------------------------


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the (height, width) at which a model sees an image.

    Both sides become multiples of `factor` (patch times merge), the area stays in [`min_pixels`, `max_pixels`], the
    aspect ratio nearly as it was. Numbers and rounding, half to even, are those of the image processor that makes the
    pixels: with others, clicks land elsewhere.
    """
    if min(height, width, factor, min_pixels) < 1 or max_pixels < max(min_pixels, factor * factor):
        raise ConfigError(
            f"sides and limits must be positive, max_pixels at least min_pixels and factor², got {height=}, {width=}, "
            f"{factor=}, {min_pixels=}, {max_pixels=}"
        )
    if max(height, width) > MAX_RATIO * min(height, width):
        raise ConfigError(f"an image may be at most {MAX_RATIO} times longer than wide, got {height=}, {width=}")
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return new_height, new_width


@dataclass(frozen=True, slots=True)
class CoordinateFrame:
    """One screen and the image of it that the model sees: takes actions from one to the other."""

    screen_width: int
    screen_height: int
    model_width: int
    model_height: int

    def __post_init__(self) -> None:
        if min(self.screen_width, self.screen_height, self.model_width, self.model_height) < 1:
            raise ConfigError(f"every side of a screen and of its image must be at least 1 pixel, got {self}")

    def to_screen(self, action: Action) -> Action:
        """Return the action in whole screen pixels, clamped to the screen."""
        return _rescaled(action, (self.model_width, self.model_height), (self.screen_width, self.screen_height))

    def to_model(self, action: Action) -> Action:
        """Return the action in whole model pixels, clamped to the model's image."""
        return _rescaled(action, (self.screen_width, self.screen_height), (self.model_width, self.model_height))


def _rescaled(action: Action, source: tuple[int, int], target: tuple[int, int]) -> Action:
    def scaled(value: float, axis: int) -> float:
        return float(min(max(round(value * target[axis] / source[axis]), 0), target[axis] - 1))

    return action.moved(lambda x, y: (scaled(x, 0), scaled(y, 1)))
