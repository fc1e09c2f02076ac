"""What a mouse and a keyboard do for each action, whatever their events look like."""

import pytest

from arpo.agent.actions import (
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
from arpo.agent.devices import MouseAndKeyboard


class Words(MouseAndKeyboard[str]):
    """Devices whose events are words."""

    DRAG_MOVES = 2

    def move(self, x, y, *, dragging=False):
        return [f"{'drag' if dragging else 'move'} {x:g} {y:g}"]

    def button(self, down, button, count):
        return f"{'press' if down else 'release'} {button} {count}"

    def scroll(self, direction, at):
        return [f"scroll {direction} {at}"]

    def key_down(self, name):
        return [] if name == "unknown" else [f"+{name}"]

    def key_up(self, name):
        return [] if name == "unknown" else [f"-{name}"]

    def type(self, text):
        return [f"type {text}"]

    def wait(self):
        return ["wait"]


@pytest.mark.parametrize(
    ("action", "events"),
    [
        (Click(1, 2), ["move 1 2", "press left 1", "release left 1"]),
        (DoubleClick(1, 2), ["move 1 2", "press left 1", "release left 1", "press left 2", "release left 2"]),
        (RightClick(1, 2), ["move 1 2", "press right 1", "release right 1"]),
        (Hover(1, 2), ["move 1 2"]),
        # half of the way, then the end: (1 + 4 / 2, 2 - 6 / 2) and (5, -4)
        (Drag(1, 2, 5, -4), ["move 1 2", "press left 1", "drag 3 -1", "drag 5 -4", "release left 1"]),
        (Scroll("up", 1, 2), ["scroll up (1, 2)"]),
        (Scroll("up"), ["scroll up None"]),
        (Hotkey(("ctrl", "unknown", "c")), ["+ctrl", "+c", "-c", "-ctrl"]),
        (Press("a"), ["+a", "-a"]),
        (KeyDown("a"), ["+a"]),
        (KeyUp("a"), ["-a"]),
        (TypeText("hi"), ["type hi"]),
        (Wait(), ["wait"]),
        (Finished("done"), []),
        (CallUser(), []),
        (Fail(), []),
    ],
    ids=repr,
)
def test_an_action_is_made_of_these_events(action, events):
    assert Words().events(action) == events
