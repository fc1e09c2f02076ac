import math

import pytest
from hypothesis import example, given

from arpo.agent.actions import Call, Click, Drag, Fail, Finished, Hotkey, Press, Scroll, TypeText, Wait
from arpo.agent.parser import parse_action, parse_response
from arpo.agent.render import render, render_response
from tests.agent import strategies

REFUSED = r"must be a number|canonical|at least one key|lower case|name of a function|must be a word|must be finite"


@given(strategies.any_action)
def test_reading_what_was_rendered_gives_the_action(action):
    assert parse_action(render(action)) == action


@given(strategies.calls)
def test_reading_a_rendered_call_gives_the_call_with_values_of_the_same_types(call):
    (found,) = parse_response(render_response(call)).actions
    assert found == call
    assert [type(value) for value in found.arguments.values()] == [type(value) for value in call.arguments.values()]


@given(strategies.any_action, strategies.thoughts)
@example(TypeText("Action: wait()"), "Action: wait()\nAction: click")
@example(TypeText("\nAction: type(content='"), "Reflection: x")
@example(Scroll("up"), "0\nAction:0(content='")
def test_reading_a_rendered_response_gives_thought_and_action(action, thought):
    try:
        text = render_response(action, thought)
    except ValueError:
        assert "Action" in thought
        return
    parsed = parse_response(text)
    assert parsed.actions == (action,)
    assert parsed.thought == thought.strip()


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
    assert render(action) == text


def test_a_thought_that_would_be_read_for_the_action_is_refused():
    with pytest.raises(ValueError, match="must hold no call that could be read for the action"):
        render_response(Scroll("up"), "0\nAction:0(content='")
    assert render_response(Wait(), "Action: click").startswith("Thought: Action: click\n")


def test_a_response_without_a_thought_is_one_line():
    assert render_response(Wait()) == "Action: wait()"
    assert render_response(Wait(), " Think.\n") == "Thought: Think.\nAction: wait()"


@pytest.mark.parametrize(
    "action",
    [
        Click(math.nan, 0),
        Click(0, math.inf),
        Click(1e6, 0),
        Press("Enter"),
        Press("foo"),
        Hotkey(()),
        Hotkey(("ctrl", "C")),
        Call(""),
        Call("f", {"function": "g"}),
        Call("f", {"a b": "c"}),
        Call("f", {"n": 10**15}),
        Call("f", {"n": 10**400}),
        Call("f", {"n": math.nan}),
    ],
)
def test_what_no_text_means_is_refused(action):
    with pytest.raises(
        ValueError,
        match=REFUSED,
    ):
        render(action)
