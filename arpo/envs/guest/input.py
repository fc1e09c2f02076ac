"""Actions as the events that a guest plays: small lists of names, whole numbers and key names, nothing else.

They mean what the source of `arpo.agent.pyautogui` means, without a process for each action.
"""

import math

from arpo.agent.actions import Action, Button, Direction
from arpo.agent.devices import MouseAndKeyboard
from arpo.agent.keys import known_key, typeable

Event = tuple[str | float, ...]

BUTTONS = {"left": 1, "middle": 2, "right": 3}
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
SCROLL_CLICKS = 5
DRAG_STEP_S = 0.02


def to_events(action: Action, *, wait_s: float) -> list[Event]:
    """Return the events of an action in screen pixels; none for one that ends the episode, or calls a function."""
    return _GuestDevices(wait_s).events(action)


class _GuestDevices(MouseAndKeyboard[Event]):
    DRAG_MOVES = 10

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def move(self, x: float, y: float, *, dragging: bool = False) -> list[Event]:
        if not (math.isfinite(x) and math.isfinite(y)):
            raise ValueError(f"a position must be finite, got ({x}, {y})")
        moved: list[Event] = [("move", round(x), round(y))]
        return [*moved, ("sleep", DRAG_STEP_S)] if dragging else moved

    def button(self, down: bool, button: Button, count: int) -> Event:
        return ("button_down" if down else "button_up", BUTTONS[button])

    def scroll(self, direction: Direction, at: tuple[float, float] | None) -> list[Event]:
        wheel = WHEEL[direction]
        turn: list[Event] = [("button_down", wheel), ("button_up", wheel)]
        return [*(self.move(*at) if at else ()), *turn * SCROLL_CLICKS]

    def key_down(self, name: str) -> list[Event]:
        return [("key_down", known_key(name))]

    def key_up(self, name: str) -> list[Event]:
        return [("key_up", known_key(name))]

    def type(self, text: str) -> list[Event]:
        typed = typeable(text)
        return [("text", typed)] if typed else []

    def wait(self) -> list[Event]:
        return [("sleep", self._wait_s)]
