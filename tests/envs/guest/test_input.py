"""Actions as events: what a guest plays for each of them."""

import runpy
from pathlib import Path

import pytest

from arpo.agent import actions
from arpo.agent.actions import Click, Drag, Hotkey, Hover, KeyDown, KeyUp, Press, Scroll, TypeText, Wait
from arpo.agent.keys import NAMED_KEYS
from arpo.envs.guest.input import to_events

LEFT = [("button_down", 1), ("button_up", 1)]


def events(action):
    return to_events(action, wait_s=2.0)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (Click(3.4, 4.6), [("move", 3, 5), *LEFT]),
        (Click(3, 4, count=2), [("move", 3, 4), *LEFT, *LEFT]),
        (Click(3, 4, button="right"), [("move", 3, 4), ("button_down", 3), ("button_up", 3)]),
        (Click(3, 4, button="middle"), [("move", 3, 4), ("button_down", 2), ("button_up", 2)]),
        (Hover(3, 4), [("move", 3, 4)]),
        (actions.Call("f", {"text": "a"}), []),
        (Scroll("up"), [("button_down", 4), ("button_up", 4)] * 5),
        (Scroll("down", 3, 4), [("move", 3, 4), *[("button_down", 5), ("button_up", 5)] * 5]),
        (Press("enter"), [("key_down", "enter"), ("key_up", "enter")]),
        (Hotkey(("ctrl", "s")), [("key_down", "ctrl"), ("key_down", "s"), ("key_up", "s"), ("key_up", "ctrl")]),
        (KeyDown("shift"), [("key_down", "shift")]),
        (KeyUp("shift"), [("key_up", "shift")]),
        (TypeText("a λ\r\nb\x07"), [("text", "a λ\nb")]),
        (TypeText(""), []),
        (Wait(), [("sleep", 2.0)]),
        (actions.Finished("all of it"), []),
        (actions.CallUser(), []),
        (actions.Fail(), []),
    ],
    ids=repr,
)
def test_an_action_is_a_short_list_of_events(action, expected):
    assert events(action) == expected


def test_a_drag_moves_the_pointer_on_its_way():
    played = events(Drag(0, 0, 100, 50))
    moves = [event for event in played if event[0] == "move"]
    assert played[1] == ("button_down", 1)
    assert played[-1] == ("button_up", 1)
    assert moves[0] == ("move", 0, 0)
    assert moves[5] == ("move", 50, 25)  # half of the way after five of ten steps
    assert moves[-1] == ("move", 100, 50)


def test_a_drag_from_a_place_that_is_not_known_moves_there_too():
    played = events(Drag(None, None, 100, 50))
    assert played[0] == ("button_down", 1)
    assert [event[1:] for event in played if event[0] == "move"] == [(x, 50) for x in range(91, 101)]
    assert events(Click(count=2)) == [("button_down", 1), ("button_up", 1)] * 2


@pytest.mark.parametrize(
    "action", [Click(float("nan"), 1), Hover(1, float("inf")), Press("Enter"), Hotkey(("ctrl", "any"))]
)
def test_what_no_mouse_and_no_keyboard_can_do_is_refused(action):
    with pytest.raises(ValueError, match=r"finite|canonical"):
        events(action)


def test_the_guest_knows_every_key_that_an_agent_can_press():
    path = Path(__file__).parents[3] / "docker" / "guest" / "keys.py"
    assert set(runpy.run_path(str(path))["KEYSYMS"]) == set(NAMED_KEYS)
