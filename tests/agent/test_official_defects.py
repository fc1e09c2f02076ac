"""The defects of the official parser (`reference/arpo.md` §1.5), one test each: all of them are absent here."""

import pytest

from arpo.agent.actions import Action, Click, Drag, Fail, Finished, Hotkey, Press, Scroll, TypeText, Wait
from arpo.agent.coordinates import CoordinateFrame, smart_resize
from arpo.agent.parser import parse_action, parse_response
from arpo.agent.pyautogui import to_pyautogui
from arpo.errors import ActionParseError


def actions(call: str, thought: str = "I act.") -> tuple[Action, ...]:
    return parse_response(f"Thought: {thought}\nAction: {call}").actions


def kind_of(call: str) -> str:
    with pytest.raises(ActionParseError) as caught:
        actions(call)
    return caught.value.kind


def test_press_works():  # there: an unbound local, so always a format error
    assert actions("press(key='enter')") == (Press("enter"),)


def test_scrolling_sideways_is_not_a_silent_no_op():
    assert actions("scroll(start_box='(1,2)', direction='left')") == (Scroll("left", 1, 2),)
    assert "hscroll(-5, 1, 2)" in to_pyautogui(Scroll("left", 1, 2))
    assert "hscroll(5, 1, 2)" in to_pyautogui(Scroll("right", 1, 2))


def test_a_drag_without_an_end_is_an_error_not_a_no_op():
    assert kind_of("drag(start_box='(1,2)')") == "missing_argument"


def test_a_hotkey_with_plus_is_split():
    assert actions("hotkey(key='ctrl+z')") == (Hotkey(("ctrl", "z")),)


def test_aliases_hold_for_every_key_of_a_hotkey():  # there: only for the whole value
    assert actions("hotkey(key='ctrl arrowleft')") == (Hotkey(("ctrl", "left")),)


@pytest.mark.parametrize("call", ["finish()", "foo(x='1')"])
def test_an_unknown_action_is_an_error_not_a_no_op(call):
    assert kind_of(call) == "unknown_action"


@pytest.mark.parametrize(
    "call",
    ["click(start_box='(1,2)'); import os", "foo", "1 + 1", "[click(start_box='(1,2)')]", "__import__(name='os')"],
)
def test_code_is_an_error_and_is_never_run(call):
    assert kind_of(call) in ("bad_syntax", "unknown_action")


def test_terminal_actions_do_not_discard_their_neighbours():
    assert actions("click(start_box='(1,2)')\n\nfinished()") == (Click(1, 2), Finished())
    assert actions("wait()\n\nerror_env()") == (Wait(), Fail())


@pytest.mark.parametrize("thought", ["it is '''quoted'''", r"open C:\users\new", r"\x \N \u12", '"""'])
def test_no_thought_can_spoil_the_source(thought):  # there: a SyntaxError in the guest, and the action is lost
    (action,) = actions("click(start_box='(1,2)')", thought)
    source = to_pyautogui(action)
    assert thought not in source
    compile(source, "guest", "exec")


@pytest.mark.parametrize(
    ("written", "text"), [("a\nb", "a\nb"), (r"a\nb", "a\nb"), (r"C:\\", "C:\\"), (r"a\\nb", r"a\nb")]
)
def test_newlines_and_backslashes_in_typed_text_survive(written, text):  # there: an unterminated string
    (action,) = actions(f"type(content='{written}')")
    assert action == TypeText(text)
    compile(to_pyautogui(action), "guest", "exec")


def test_double_quoted_text_is_not_typed_as_source():  # there: types `type(content="hello")`
    assert actions('type(content="hello")') == (TypeText("hello"),)
    assert actions('finished(content="hello")') == (Finished("hello"),)


def test_two_actions_on_two_lines_are_two_actions():  # there: types the first action's source
    assert actions("click(start_box='(1,2)')\ntype(content='x')") == (Click(1, 2), TypeText("x"))


def test_an_escaped_backslash_before_n_is_no_newline():  # there: `plan\\n` types `pla` and presses Enter
    assert actions(r"type(content='plan\\n')") == (TypeText(r"plan\n"),)
    assert actions(r"type(content='C:\\n')") == (TypeText(r"C:\n"),)
    assert "enter" not in to_pyautogui(TypeText(r"plan\n"))


def test_text_that_ends_in_n_keeps_it_before_a_newline():  # there: a character-set strip eats trailing `n` and `\`
    source = to_pyautogui(TypeText("plan\n"))
    assert "pyautogui.write('plan'" in source
    assert source.rstrip().endswith("pyautogui.press('enter')")


def test_a_blank_line_inside_typed_text_does_not_split_it():
    assert actions("type(content='a\n\nb')") == (TypeText("a\n\nb"),)


@pytest.mark.parametrize("box", ["'966 546'", "'[966,546]'", "'<point>966 546</point>'", "(966, 546)"])
def test_other_spellings_of_a_position_are_read(box):
    assert actions(f"click(start_box={box})") == (Click(966, 546),)


def test_a_missing_position_is_an_error_with_a_name():
    assert kind_of("click()") == "missing_argument"


def test_box_tokens_may_stay():  # there: float() fails unless decoding stripped them
    assert actions("click(start_box='<|box_start|>(966, 546)<|box_end|>')") == (Click(966, 546),)
    assert actions("drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='(3,4)')") == (Drag(1, 2, 3, 4),)


def test_no_action_leaves_the_screen():  # there: (5000, 5000) clicks at (4968.9, 4945.1)
    frame = CoordinateFrame(1920, 1080, 1932, 1092)
    assert frame.to_screen(Click(5000, 5000)) == Click(1919, 1079)


def test_reading_uses_the_limits_that_resizing_uses():
    # there: images are resized with 3,136..2,116,800 pixels, coordinates read with 78,400..12,845,056;
    # at 2560x1440 (3,686,400 pixels) the two differ, so the limits have no default here.
    resizing = smart_resize(1440, 2560, factor=28, min_pixels=3136, max_pixels=2_116_800)
    reading = smart_resize(1440, 2560, factor=28, min_pixels=78_400, max_pixels=12_845_056)
    assert resizing != reading
    with pytest.raises(TypeError):
        smart_resize(1440, 2560)  # type: ignore[call-arg]


def test_text_that_no_key_types_is_not_dropped():  # there: pyautogui.write drops it silently
    source = to_pyautogui(TypeText("żółw"))
    assert ascii("żół") in source
    assert "xdotool" in source
    assert "pyperclip" in source


@pytest.mark.parametrize("written", ["it's", r"it\'s"])
def test_apostrophes_work_as_they_do_there(written):
    assert parse_action(f"type(content='{written}')") == TypeText("it's")
