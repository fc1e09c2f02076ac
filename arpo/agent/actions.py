"""The actions of an agent: a closed union of types. Coordinates are pixels; which pixels, the holder knows.

Where the place of an action of the mouse is None, it happens where the pointer is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Direction = Literal["up", "down", "left", "right"]
Scalar = str | int | float | bool
INTEGER_DIGITS = 15
"""The most digits of a whole number in a call: a float of as many is exact too."""


@dataclass(frozen=True, slots=True)
class Click:
    """A press and release of the left button."""

    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class DoubleClick:
    """A double-click with the left button."""

    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class RightClick:
    """A press and release of the right button."""

    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class MiddleClick:
    """A press and release of the middle button, which opens a link in a new tab, or pastes what is selected."""

    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Hover:
    """A move of the pointer."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Drag:
    """A press of the left button at one point and its release at another."""

    x: float | None
    y: float | None
    to_x: float
    to_y: float


@dataclass(frozen=True, slots=True)
class Scroll:
    """A turn of the wheel, at a point or where the pointer is."""

    direction: Direction
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Hotkey:
    """Keys that are pressed together, in order, and released in reverse."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Press:
    """A press and release of one key."""

    key: str


@dataclass(frozen=True, slots=True)
class KeyDown:
    """The press of a key that stays held."""

    key: str


@dataclass(frozen=True, slots=True)
class KeyUp:
    """The release of a held key."""

    key: str


@dataclass(frozen=True, slots=True)
class TypeText:
    """Text that is typed as it is; a newline presses Enter."""

    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause in which the desktop works, and another look."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function that the desktop has (arXiv 2508.14040). What it cannot perform does nothing.

    An argument is no position: nothing takes it from the model's picture to the screen.
    """

    function: str
    arguments: Mapping[str, Scalar] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Finished:
    """The claim that the task is done."""

    content: str = ""


@dataclass(frozen=True, slots=True)
class CallUser:
    """The return of the task to the user."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The claim that the task is infeasible (`error_env` in UI-TARS's grammar)."""


Pointer = Click | DoubleClick | RightClick | MiddleClick | Hover | Drag | Scroll
"""Actions of the mouse."""

Keyboard = Hotkey | Press | KeyDown | KeyUp
"""Actions of the keyboard but typing."""

Terminal = Finished | CallUser | Fail
"""Actions after which the episode ends."""

Action = Pointer | Keyboard | TypeText | Wait | Call | Terminal


def moved(action: Action, move: Callable[[float, float], tuple[float, float]]) -> Action:
    """Return an action with every position of it moved, such as to the pixels of another picture."""

    def placed(x: float | None, y: float | None) -> tuple[float | None, float | None]:
        return (x, y) if x is None or y is None else move(x, y)

    match action:
        case Click(x, y) | DoubleClick(x, y) | RightClick(x, y) | MiddleClick(x, y):
            return type(action)(*placed(x, y))
        case Hover(x, y):
            return Hover(*move(x, y))
        case Drag(x, y, to_x, to_y):
            return Drag(*placed(x, y), *move(to_x, to_y))
        case Scroll(direction, x, y):
            return Scroll(direction, *placed(x, y))
        case _:
            return action


def begun_at(action: Action, pointer: tuple[float, float] | None) -> Action:
    """Return a click or a drag that names no place as one at the pointer, where it is known where that is."""
    kinds = (Click, DoubleClick, RightClick, MiddleClick, Drag)
    if pointer is None or not isinstance(action, kinds) or action.x is not None:
        return action
    return replace(action, x=pointer[0], y=pointer[1])


def pointer_after(action: Action, before: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return where the pointer is after an action, None where that is not known."""
    if isinstance(action, Drag):
        return action.to_x, action.to_y
    if isinstance(action, Pointer) and action.x is not None and action.y is not None:
        return action.x, action.y
    return before
