"""Actions as the events that a guest plays: small lists of names, whole numbers and key names, nothing else.

They mean what the source of `arpo.agent.pyautogui` means, without a process for each action.
"""

import math
import unicodedata
from typing import assert_never

from arpo.agent.actions import (
    Action,
    CallUser,
    Click,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    Press,
    RightClick,
    Scroll,
    TypeText,
    Wait,
)
from arpo.agent.keys import known_key

Event = tuple[str | float, ...]

LEFT, RIGHT = 1, 3
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
SCROLL_CLICKS = 5
DRAG_STEPS = 10
DRAG_STEP_S = 0.02
"""Applications take a pointer that jumps for a click, and one that moves for a drag."""


def to_events(action: Action, *, wait_s: float) -> list[Event]:
    """Return the events of an action in screen pixels; none for an action that only ends the episode.

    Raises:
        ValueError: If a key is unknown or a position is not a number.
    """
    match action:
        case Click() | DoubleClick() | RightClick() | Hover() | Drag() | Scroll():
            return _pointer(action)
        case Hotkey() | Press() | KeyDown() | KeyUp():
            return _keyboard(action)
        case TypeText(text):
            return _typing(text)
        case Wait():
            return [("sleep", wait_s)]
        case Finished() | CallUser() | Fail():
            return []
        case _:
            assert_never(action)


def _pointer(action: Click | DoubleClick | RightClick | Hover | Drag | Scroll) -> list[Event]:
    match action:
        case Click(x, y):
            return [_move(x, y), *_click(LEFT)]
        case DoubleClick(x, y):
            return [_move(x, y), *_click(LEFT), *_click(LEFT)]
        case RightClick(x, y):
            return [_move(x, y), *_click(RIGHT)]
        case Hover(x, y):
            return [_move(x, y)]
        case Drag():
            return _drag(action)
        case Scroll(direction, x, y):
            where = [] if x is None or y is None else [_move(x, y)]
            return [*where, *_click(WHEEL[direction]) * SCROLL_CLICKS]
        case _:
            assert_never(action)


def _drag(action: Drag) -> list[Event]:
    events: list[Event] = [_move(action.x, action.y), ("button_down", LEFT)]
    for step in range(1, DRAG_STEPS + 1):
        part = step / DRAG_STEPS
        x, y = action.x + part * (action.to_x - action.x), action.y + part * (action.to_y - action.y)
        events += [_move(x, y), ("sleep", DRAG_STEP_S)]
    return [*events, ("button_up", LEFT)]


def _click(button: int) -> list[Event]:
    return [("button_down", button), ("button_up", button)]


def _move(x: float, y: float) -> Event:
    if not (math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"a position must be finite, got ({x}, {y})")
    return ("move", round(x), round(y))


def _keyboard(action: Hotkey | Press | KeyDown | KeyUp) -> list[Event]:
    match action:
        case Hotkey(keys):
            return _together(keys)
        case Press(key):
            return _together((key,))
        case KeyDown(key):
            return [("key_down", known_key(key))]
        case KeyUp(key):
            return [("key_up", known_key(key))]
        case _:
            assert_never(action)


def _together(keys: tuple[str, ...]) -> list[Event]:
    names = [known_key(key) for key in keys]
    pressed: list[Event] = [("key_down", name) for name in names]
    return pressed + [("key_up", name) for name in reversed(names)]


def _typing(text: str) -> list[Event]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    # Control characters and lone surrogates are no text: no keyboard types them.
    typed = "".join(c for c in lines if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))
    return [("text", typed)] if typed else []
