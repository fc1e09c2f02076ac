"""Qwen3-VL's tool calls: each action, each malformed answer by name, and the prompt."""

import json

import pytest

from arpo.agent import actions
from arpo.agent.computer_use import parse_response, render_response
from arpo.agent.prompt import GRAMMARS
from arpo.agent.ui_tars import parse_action
from arpo.errors import ActionParseError


def quoted(arguments: str) -> str:
    """A call in Python's quotes."""
    return f"<tool_call>{{'name': 'computer_use', 'arguments': {arguments}}}</tool_call>"


def called(**arguments: object) -> str:
    content = {"name": "computer_use", "arguments": arguments}
    return f"<tool_call>\n{json.dumps(content)}\n</tool_call>"


def test_the_thought_is_what_stands_before_and_more_calls_may_follow():
    text = f"I open it.\n{called(action='left_click', coordinate=[1, 2])}\n{called(action='type', text='a')}\n"
    parsed = parse_response(text)
    assert parsed.thought == "I open it."
    assert render_response(parsed.actions[0], parsed.thought, *parsed.actions[1:]) == text.rstrip()
    assert parsed.actions == (actions.Click(1, 2), actions.TypeText("a"))
    with pytest.raises(ActionParseError, match="2 actions, more than max_actions=1") as refused:
        GRAMMARS["computer_use"].read(text, (), max_actions=1)
    assert refused.value.kind == "too_long"


def test_a_drag_begins_where_the_pointer_is_and_another_name_is_a_function_of_the_desktop():
    move = called(action="mouse_move", coordinate=[1, 2])
    drag = called(action="left_click_drag", coordinate=[3, 4])
    here = actions.Drag(None, None, 3, 4)
    assert parse_response(drag).actions == (here,)
    assert parse_response(move + drag).actions == (actions.Drag(1, 2, 3, 4),)
    assert parse_response(move + move + drag).actions == (actions.Hover(1, 2), actions.Drag(1, 2, 3, 4))
    assert parse_response(move + drag + drag).actions == (actions.Drag(1, 2, 3, 4), here)
    click = called(action="left_click", coordinate=[1, 2])
    assert parse_response(click + drag).actions == (actions.Click(1, 2), here)
    assert render_response(here) == drag
    text = '<tool_call>{"name": "files.write", "arguments": {"path": "a", "n": 3, "x": 0.5, "all": true}}</tool_call>'
    wanted = actions.Call("files.write", {"path": "a", "n": 3, "x": 0.5, "all": True})
    assert parse_response(text).actions == (wanted,)
    assert parse_response(render_response(wanted)).actions == (wanted,)


MALFORMED = {
    "empty": [""],
    "no_action": ["Action: click(start_box='(1,2)')", "</tool_call>"],
    "bad_syntax": [
        f"</tool_call>{called(action='wait')}", f"<tool_call>{called(action='wait')}",
        f"{called(action='wait')}</tool_call>", "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "computer_use"}</tool_call>', '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "computer_use", "arguments": []}</tool_call>',
        f"<tool_call>{'[' * 100_000}</tool_call>", f"<tool_call>{'9' * 5000}</tool_call>",
        quoted("{'action': 'wait', 1: 2}"), "<tool_call>{'name': 'f', 'arguments': {['a']: 2, **{}}}</tool_call>",
        quoted("{'action': 'type', 'text': 0x10}"), f"{called(action='wait') * 70}</think>",
        f"{called(action='wait')}<tool_call",
        f"{called(action='wait')} No, I type: {called(action='type', text='a')}",
        f'{called(action="wait")} {{"name": "computer_use"',
        f"{called(action='wait')[:-12]} {called(action='wait')[1:]}", quoted("{'action': 'type', 'text': 'it's'}"),
        quoted("{'action': 'type', 'text': 'a''b'}"), quoted("{'action': 'type', 'text': 'a\\x41'}"),
        quoted("__import__('os')"),
    ],
    "missing_argument": [
        called(), called(action="mouse_move"), called(action="type", text=None), called(action="key", keys=[]),
    ],
    "unknown_action": [called(action="long_click", coordinate=[1, 2]), called(action=["wait"])],
    "bad_box": [
        called(action="left_click", coordinate=[1]), called(action="left_click_drag", coordinate=[1, 2, 7, 8]),
        called(action="left_click", coordinate=[True, 2]), called(action="left_click", coordinate=[10**400, 2]),
    ],
    "bad_argument": [
        called(action="left_click", coordinte=[1, 2]), called(action="left_click", coordinate=[1, 2], text="ctrl"),
        called(action="left_click", coordinate=[1, 2], num_clicks=2),
        called(action="left_click_drag", coordinate=[1, 2], start_coordinate=[3, 4]),
        called(action="scroll", coordinate=[5, 6], pixels=5, direction="down"),
        called(action="type", text="a", keys=["enter"]), called(action="key", keys=["ctrl"], text="c"),
        called(action="left_click", coordinate=[1, 2], clickCount=2), called(action="left_click", pixels=[5, 6]),
        called(action="answer", text="none", status="failure"), called(action="key", keys="[{[1]:2}]"),
        called(action="type", text=1.5), called(action="terminate", stats="failure"),
        quoted("{'action': 'wait', 'action': 'type'}"), called(action="left_click", coordinate=[float("nan"), 2]),
        called(action="left_click", coordinate=[1, 2], button="right"), called(action="key", keys=["ctrl", 1.5]),
        called(action="key", keys=["ctrl", "nokey"]), called(action="scroll", pixels=0),
        called(action="scroll", pixels="up"), called(action="type", text="\ud800"),
        called(action="terminate", status="done"),
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "action": "type"}}</tool_call>',
        r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>',
        r'<tool_call>{"name": "\ud800", "arguments": {"name": "a"}}</tool_call>',
    ],
    "bad_call": [
        called(action="wait").replace("computer_use", "computer"),
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"function": 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": [1]}}</tool_call>',
        f'<tool_call>{{"name": "f", "arguments": {{"a": {10**15}}}}}</tool_call>',
    ],
    "too_long": ["a" * 1_000_001],
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for kind, texts in MALFORMED.items() for text in texts])
def test_what_is_malformed_is_named(text, kind):
    with pytest.raises(ActionParseError) as refused:
        parse_response(text)
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    "action",
    [
        actions.KeyDown("a"),
        actions.KeyUp("a"),
        actions.CallUser(),
        actions.Click(float("nan"), 1),
        actions.Hotkey(()),
        actions.Hotkey(("Ctrl",)),
        actions.Hotkey(("ctrl", "C")),
        actions.Press("nokey"),
    ],
    ids=str,
)
def test_what_the_tool_has_no_call_for_cannot_be_written(action):
    with pytest.raises(ValueError, match=r"has no action|must be"):
        render_response(action)
    for thought in ('{"name" is first', "first <tool_call>"):
        with pytest.raises(ValueError, match="a thought must not hold"):
            render_response(actions.Wait(), thought)


def test_a_chord_that_could_not_be_read_again_is_refused():
    """A step is stored in UI-TARS's words, which spell plus and minus and have a limit."""
    with pytest.raises(ActionParseError, match="more than 100") as refused:
        parse_response(called(action="key", keys=["+"] * 20))
    assert refused.value.kind == "bad_argument"
    (action,) = parse_response(called(action="key", keys=["ctrl", "shift", "alt", "launchmediaselect", "+"])).actions
    assert parse_action(action.describe()) == action
