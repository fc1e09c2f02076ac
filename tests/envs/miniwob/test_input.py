import pytest

from arpo.agent.actions import Click, Drag, Finished, Hotkey, Hover, KeyDown, KeyUp, Press, Scroll, TypeText, Wait
from arpo.envs.miniwob.input import InputDevices, find_key


def kinds(events):
    return [params.get("type", params.get("text")) for _, params in events]


def test_a_double_click_is_two_clicks_that_count():
    events = InputDevices().events(Click(3, 4, count=2))
    assert kinds(events) == ["mouseMoved", "mousePressed", "mouseReleased", "mousePressed", "mouseReleased"]
    assert [params.get("clickCount") for _, params in events] == [None, 1, 1, 2, 2]


def test_a_drag_moves_with_the_button_held_and_ends_where_it_should():
    events = InputDevices().events(Drag(0, 0, 8, 4))
    moves = [(p["x"], p["y"]) for _, p in events[2:-1]]
    assert moves == [(2, 1), (4, 2), (6, 3), (8, 4)]
    assert all(p["buttons"] == 1 for _, p in events[2:-1])
    assert (events[-1][1]["x"], events[-1][1]["y"], events[-1][1]["type"]) == (8, 4, "mouseReleased")


def test_a_click_and_a_drag_without_a_place_begin_where_the_pointer_is():
    devices = InputDevices()
    devices.events(Hover(4, 8))
    assert kinds(devices.events(Click())) == ["mousePressed", "mouseReleased"]
    events = devices.events(Drag(None, None, 8, 16))
    assert [(p["x"], p["y"]) for _, p in events] == [(4, 8), (5, 10), (6, 12), (7, 14), (8, 16), (8, 16)]
    assert kinds(events)[:2] == ["mousePressed", "mouseMoved"]


@pytest.mark.parametrize(
    ("direction", "signs"), [("up", (0, -1)), ("down", (0, 1)), ("left", (-1, 0)), ("right", (1, 0))]
)
def test_a_scroll_has_four_directions_and_without_a_point_happens_where_the_pointer_is(direction, signs):
    devices = InputDevices()
    devices.events(Click(30, 40))
    for at, scroll in (((30, 40), Scroll(direction)), ((1, 2), Scroll(direction, 1, 2))):
        wheel = devices.events(scroll)[-1][1]
        assert (wheel["type"], wheel["x"], wheel["y"]) == ("mouseWheel", *at)
    assert tuple((d > 0) - (d < 0) for d in (wheel["deltaX"], wheel["deltaY"])) == signs


def test_a_hotkey_presses_in_order_releases_in_reverse_and_writes_nothing():
    events = InputDevices().events(Hotkey(("ctrl", "a")))
    seen = [(p["type"], p["key"]) for _, p in events]
    assert seen == [("rawKeyDown", "Control"), ("rawKeyDown", "a"), ("keyUp", "a"), ("keyUp", "Control")]
    assert events[1][1]["modifiers"] == 2  # Control
    assert not any("text" in p for _, p in events)


def test_a_held_key_modifies_clicks_until_it_is_released_by_the_agent_or_after_the_episode():
    devices = InputDevices()
    devices.events(KeyDown("shift"))
    assert devices.events(Click(1, 1))[1][1]["modifiers"] == 8  # Shift
    devices.events(KeyUp("shift"))
    assert devices.events(Click(1, 1))[1][1]["modifiers"] == 0
    devices.events(KeyDown("ctrl"))
    assert [p["type"] for _, p in devices.release(5, 5)] == ["keyUp", "mouseMoved"]
    assert not devices.held


def test_typing_presses_enter_for_a_newline_and_inserts_what_no_key_writes():
    events = InputDevices().events(TypeText("a\né"))
    keys = [("Input.dispatchKeyEvent", key) for key in ("a", "a", "Enter", "Enter")]
    seen = [(method, p.get("key", p.get("text"))) for method, p in events]
    assert seen == [*keys, ("Input.insertText", "é")]


def test_key_names_are_found_in_any_case_and_by_their_synonyms():
    for name in ("enter", "Return", "ESC", "pageup", "PageDown", "arrowleft", "f5", "space", "win"):
        assert find_key(name) is not None, name
    # with the codes that browsers know
    assert [find_key(f"f{number}").code for number in (1, 4, 12)] == [112, 115, 123]


@pytest.mark.parametrize("action", [Press(""), Press("nonsense"), Press("\x00"), Wait(), Finished()], ids=str)
def test_an_unknown_key_and_an_action_without_input_touch_nothing(action):
    assert InputDevices().events(action) == []
