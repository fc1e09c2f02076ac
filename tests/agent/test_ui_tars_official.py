"""Differential tests against the official parser, ui-tars 0.1.4, on the grammar that both read rightly."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent import actions
from arpo.agent.ui_tars import parse_response
from tests.agent import strategies

official = pytest.importorskip("ui_tars.action_parser")

HEIGHT, WIDTH = 1080, 1920
MODEL_HEIGHT, MODEL_WIDTH = actions.smart_resize(HEIGHT, WIDTH, factor=28, min_pixels=78_400, max_pixels=12_845_056)

numbers = st.integers(0, 1900)
points = st.one_of(
    st.builds("({},{})".format, numbers, numbers),
    st.builds("({}, {})".format, numbers, numbers),
    st.builds("({},{},{},{})".format, numbers, numbers, numbers, numbers),
)
clicks = st.sampled_from(["click", "left_single", "left_double", "right_single", "hover"])
keys = st.sampled_from(["ctrl", "shift", "alt", "a", "z", "f5", "tab", "enter"])
calls = st.one_of(
    st.builds("{}(start_box='{}')".format, clicks, points),
    st.builds("{}(start_box='{}', end_box='{}')".format, st.sampled_from(["drag", "select"]), points, points),
    st.builds("click(point='<point>{} {}</point>')".format, numbers, numbers),
    st.builds("scroll(start_box='{}', direction='{}')".format, points, strategies.directions),
    st.builds("scroll(direction='{}')".format, strategies.directions),
    st.builds(lambda chord: f"hotkey(key='{' '.join(chord)}')", st.lists(keys, min_size=1, max_size=3)),
    st.builds("press(key='{}')".format, st.sampled_from(["enter", "a", "f5"])),
    st.builds("type(content='{}')".format, strategies.plain_text),
    st.builds("type(content='{}\\n')".format, strategies.plain_text),
    st.builds("type(content='{}it\\'s')".format, strategies.plain_text),
    st.builds("finished(content='{}')".format, strategies.plain_text),
    st.just("wait()"),
)


def box(text: str) -> tuple[float, float]:
    x1, y1, x2, y2 = json.loads(text)
    return (x1 + x2) / 2 * MODEL_WIDTH, (y1 + y2) / 2 * MODEL_HEIGHT


READERS: dict[str, Callable[[dict[str, str]], actions.Action]] = {
    "click": lambda inputs: actions.Click(*box(inputs["start_box"])),
    "left_single": lambda inputs: actions.Click(*box(inputs["start_box"])),
    "left_double": lambda inputs: actions.Click(*box(inputs["start_box"]), count=2),
    "right_single": lambda inputs: actions.Click(*box(inputs["start_box"]), button="right"),
    "hover": lambda inputs: actions.Hover(*box(inputs["start_box"])),
    "drag": lambda inputs: actions.Drag(*box(inputs["start_box"]), *box(inputs["end_box"])),
    "select": lambda inputs: actions.Drag(*box(inputs["start_box"]), *box(inputs["end_box"])),
    "scroll": lambda inputs: actions.Scroll(
        inputs["direction"],  # type: ignore[arg-type]
        *(box(inputs["start_box"]) if "start_box" in inputs else ()),
    ),
    "hotkey": lambda inputs: actions.Hotkey(tuple(inputs["key"].split())),
    "press": lambda inputs: actions.Press(inputs["key"]),
    "type": lambda inputs: actions.TypeText(inputs["content"]),
    "finished": lambda inputs: actions.Finished(inputs["content"]),
    "wait": lambda inputs: actions.Wait(),
}


def snapped(action: actions.Action) -> actions.Action:
    """The official parser divides by the size; multiplying again leaves a last bit. Half pixels are exact in both."""
    frame = actions.CoordinateFrame(10 * MODEL_WIDTH, 10 * MODEL_HEIGHT, MODEL_WIDTH, MODEL_HEIGHT)
    return frame.to_screen(action)


@given(st.lists(calls, min_size=1, max_size=3), strategies.plain_text)
def test_both_parsers_read_the_common_grammar_alike(written, thought):
    text = f"Thought: {thought}\nAction: " + "\n\n".join(written)
    theirs = official.parse_action_to_structure_output(text, 28, HEIGHT, WIDTH, model_type="qwen25vl")
    ours = parse_response(text)
    assert ours.thought == theirs[0]["thought"]
    expected = [snapped(READERS[parsed["action_type"]](parsed["action_inputs"])) for parsed in theirs]
    assert [snapped(action) for action in ours.actions] == expected


@given(numbers, numbers)
def test_both_click_the_same_screen_pixel(x, y):
    text = f"Thought: t\nAction: click(start_box='({x},{y})')"
    theirs = official.parse_action_to_structure_output(text, 28, HEIGHT, WIDTH, model_type="qwen25vl")
    code = official.parsing_response_to_pyautogui_code(theirs, HEIGHT, WIDTH)
    their_x, their_y = (float(part) for part in code.rsplit("click(", 1)[1].split(", button")[0].split(", "))
    (action,) = parse_response(text).actions
    ours = actions.CoordinateFrame(WIDTH, HEIGHT, MODEL_WIDTH, MODEL_HEIGHT).to_screen(action)
    # Theirs keeps three decimals and does not clamp.
    assert ours.x == pytest.approx(min(their_x, WIDTH - 1), abs=0.501)
    assert ours.y == pytest.approx(min(their_y, HEIGHT - 1), abs=0.501)
