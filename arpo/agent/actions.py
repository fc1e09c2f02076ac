"""What an agent can do: a closed union of typed actions. Coordinates are pixels; which pixels, the holder knows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Direction = Literal["up", "down", "left", "right"]


@dataclass(frozen=True, slots=True)
class Click:
    """Press and release the left button."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class DoubleClick:
    """Double-click with the left button."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class RightClick:
    """Press and release the right button."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Hover:
    """Move the pointer."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Drag:
    """Press the left button at one point and release it at another."""

    x: float
    y: float
    to_x: float
    to_y: float


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel, at a point or where the pointer is."""

    direction: Direction
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Hotkey:
    """Press keys together, in order, and release them in reverse."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Press:
    """Press and release one key."""

    key: str


@dataclass(frozen=True, slots=True)
class KeyDown:
    """Hold one key."""

    key: str


@dataclass(frozen=True, slots=True)
class KeyUp:
    """Release one key."""

    key: str


@dataclass(frozen=True, slots=True)
class TypeText:
    """Type text as it is; a newline presses Enter."""

    text: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the desktop work, then look again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Declare the task done."""

    content: str = ""


@dataclass(frozen=True, slots=True)
class CallUser:
    """Hand the task back to the user."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Declare the task infeasible (`error_env` in UI-TARS's grammar)."""


Pointer = Click | DoubleClick | RightClick | Hover | Drag | Scroll
"""Actions of the mouse."""

Keyboard = Hotkey | Press | KeyDown | KeyUp
"""Actions of the keyboard but typing."""

Terminal = Finished | CallUser | Fail
"""Actions after which the episode ends."""

Action = Pointer | Keyboard | TypeText | Wait | Terminal


def moved(action: Action, move: Callable[[float, float], tuple[float, float]]) -> Action:
    """Return an action with every position of it moved, such as to the pixels of another picture."""
    match action:
        case Click(x, y) | DoubleClick(x, y) | RightClick(x, y) | Hover(x, y):
            return type(action)(*move(x, y))
        case Drag(x, y, to_x, to_y):
            return Drag(*move(x, y), *move(to_x, to_y))
        case Scroll(direction, x, y) if x is not None and y is not None:
            return Scroll(direction, *move(x, y))
        case _:
            return action
