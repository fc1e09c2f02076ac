"""Actions: how they describe themselves, and the way of their points between screen and picture."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from arpo.agent.actions import (
    Call,
    Click,
    CoordinateFrame,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    Press,
    Scroll,
    TypeText,
    Wait,
    smart_resize,
)
from arpo.agent.ui_tars import parse_action
from arpo.errors import ConfigError
from tests.agent import strategies

REFUSED = (
    r"must be a number|no grammar has a click|canonical|at least one key|lower case|name of a function|must be a word|"
    "must be finite"
)


@given(strategies.any_action)
def test_reading_what_was_described_gives_the_action(action):
    assert parse_action(action.describe()) == action


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (Click(966.0, 546.0), "click(start_box='(966,546)')"),
        (Click(0.5, -0.0), "click(start_box='(0.5,0)')"),
        (Drag(1, 2, 3, 4), "drag(start_box='(1,2)', end_box='(3,4)')"),
        (Scroll("down", 1, 2), "scroll(start_box='(1,2)', direction='down')"),
        (Scroll("left"), "scroll(direction='left')"),
        (Hotkey(("ctrl", "+")), "hotkey(key='ctrl plus')"),
        (Press("enter"), "press(key='enter')"),
        (TypeText("it's\n"), r"type(content='it\'s\n')"),
        (TypeText("\r\t\\"), r"type(content='\r\t\\')"),
        (Finished(), "finished()"),
        (Finished("ok"), "finished(content='ok')"),
        (Wait(), "wait()"),
        (Fail(), "error_env()"),
        (Call("a.b"), "call(function='a.b')"),
        (Call("a", {"x": "it's", "n": 1}), r"call(function='a', x='it\'s', n=1)"),
        (Call("a", {"x": 1.0, "on": True}), "call(function='a', x=1.0, on=true)"),
    ],
)
def test_actions_are_written_as_ui_tars_writes_them(action, text):
    assert action.describe() == text


IMPOSSIBLE = [
    Click(math.nan, 0), Click(0, math.inf), Click(1e6, 0), Click(1, 2, "right", 2), Press("Enter"), Press("foo"),
    Hotkey(()), Hotkey(("ctrl", "C")), Call(""), Call("f", {"function": "g"}), Call("f", {"a b": "c"}),
    Call("f", {"n": 10**15}), Call("f", {"n": 10**400}), Call("f", {"n": math.nan}),
]  # fmt: skip


@pytest.mark.parametrize("action", IMPOSSIBLE)
def test_what_no_text_means_is_refused(action):
    with pytest.raises(ValueError, match=REFUSED):
        action.describe()


# The limits of the paper's run, of the Qwen2.5-VL checkpoints and of ui-tars.
LIMITS = [(3136, 2_116_800), (3136, 12_845_056), (78_400, 12_845_056)]


@pytest.mark.parametrize(
    ("height", "width", "limits", "expected"),
    [
        (1080, 1920, (3136, 2_116_800), (1092, 1932)),
        (1080, 1920, (78_400, 12_845_056), (1092, 1932)),
        # 1022 / 28 = 36.5 and 1522 / 28 = 54.357: half to even gives 36 * 28 and 54 * 28.
        (1022, 1522, (78_400, 12_845_056), (1008, 1512)),
        # 1440 * 2560 is 1.3197² times too large: 1091.2 and 1939.9, down to 38 * 28 and 69 * 28.
        (1440, 2560, (3136, 2_116_800), (1064, 1932)),
        # 28 * 28 is (1/2)² of 3136: twice as large.
        (28, 28, (3136, 2_116_800), (56, 56)),
    ],
)
def test_known_sizes(height, width, limits, expected):
    assert smart_resize(height, width, factor=28, min_pixels=limits[0], max_pixels=limits[1]) == expected


@given(height=st.integers(1, 5000), width=st.integers(1, 5000), limits=st.sampled_from(LIMITS))
def test_the_size_is_the_image_processor_s_even_for_slivers_and_ui_tars_s_own(height, width, limits):
    qwen = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    assume(max(height, width) <= 200 * min(height, width))
    bounds = {"factor": 28, "min_pixels": limits[0], "max_pixels": limits[1]}
    ours = smart_resize(height, width, **bounds)
    assert ours == qwen.smart_resize(height, width, **bounds)
    if min(height, width) >= 28 and max(height, width) <= 150 * min(height, width):
        assert ours == pytest.importorskip("ui_tars.action_parser").smart_resize(height, width, **bounds)


@pytest.mark.parametrize(
    ("height", "width", "limits"),
    [(0, 10, (1, 784)), (10, 10, (0, 784)), (10, 10, (100, 99)), (10, 10, (1, 783)), (10, 2001, (1, 784))],
)
def test_sizes_without_meaning_are_refused(height, width, limits):
    with pytest.raises(ConfigError, match="got"):
        smart_resize(height, width, factor=28, min_pixels=limits[0], max_pixels=limits[1])
    with pytest.raises(TypeError):  # the limits of reading and resizing differed in the official code: no defaults
        smart_resize(height, width)


@given(st.data(), st.integers(28, 4000), st.integers(28, 4000), st.sampled_from(LIMITS[:2]))
def test_model_pixels_survive_the_way_to_the_screen_and_back(data, width, height, limits):
    assume(max(height, width) <= 200 * min(height, width))
    assume(height * width >= limits[0])
    model_height, model_width = smart_resize(height, width, factor=28, min_pixels=limits[0], max_pixels=limits[1])
    frame = CoordinateFrame(width, height, model_width, model_height)
    x = data.draw(st.integers(0, model_width - 1))
    y = data.draw(st.integers(0, model_height - 1))
    screen = frame.to_screen(Click(x, y))
    assert 0 <= screen.x <= width - 1
    assert 0 <= screen.y <= height - 1
    back = frame.to_model(screen)
    assert abs(back.x - x) <= 1
    assert abs(back.y - y) <= 1


def test_every_position_of_an_action_moves_as_computed_by_hand_clamped_both_ways_and_nothing_else():
    frame = CoordinateFrame(screen_width=1920, screen_height=1080, model_width=1932, model_height=1092)
    # 966 * 1920 / 1932 = 960 and 546 * 1080 / 1092 = 540: the middle is the middle.
    assert frame.to_screen(Click(966, 546)) == Click(960, 540)
    assert frame.to_model(Click(960, 540)) == Click(966, 546)
    # 100 * 1920 / 1932 = 99.38, 200 * 1080 / 1092 = 197.80
    assert frame.to_screen(Hover(100, 200)) == Hover(99, 198)
    frame = CoordinateFrame(100, 200, 200, 100)
    assert frame.to_screen(Click(-5, 1e5)) == Click(0, 199)
    assert frame.to_model(Click(1e5, -5)) == Click(199, 0)
    assert CoordinateFrame(1, 1, 28, 28).to_screen(Click(14, 14)) == Click(0, 0)
    with pytest.raises(ConfigError, match="at least 1 pixel"):
        CoordinateFrame(1, 0, 28, 28)
    frame = CoordinateFrame(100, 200, 200, 100)
    assert frame.to_screen(Drag(10, 10, 20, 20)) == Drag(5, 20, 10, 40)
    assert frame.to_screen(Drag(None, None, 20, 20)) == Drag(None, None, 10, 40)
    assert frame.to_screen(Click()) == Click()
    assert frame.to_screen(Scroll("up", 10, 10)) == Scroll("up", 5, 20)
    for action in (Scroll("up"), TypeText("x"), Wait(), Press("a"), Finished("x")):
        assert frame.to_screen(action) == action
        assert frame.to_model(action) == action
