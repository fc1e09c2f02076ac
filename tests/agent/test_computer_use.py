"""Qwen3-VL's tool calls: each action, each malformed answer by name, and the prompt."""

import json

import pytest

from arpo.agent import actions
from arpo.agent.computer_use import parse_response, render_response
from arpo.agent.functions import Function
from arpo.agent.grammar import GRAMMARS
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_action
from arpo.errors import ActionParseError


def quoted(arguments: str) -> str:
    """A call in Python's quotes."""
    return f"<tool_call>{{'name': 'computer_use', 'arguments': {arguments}}}</tool_call>"


def called(**arguments: object) -> str:
    content = {"name": "computer_use", "arguments": arguments}
    return f"<tool_call>\n{json.dumps(content)}\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "right_click", "coordinate": [0, 999.5]}, actions.Click(0, 999.5, button="right")),
        ({"action": "hscroll", "pixels": 1}, actions.Scroll("right")),
        ({"action": "key", "keys": ["ctrl", "Page_Down"]}, actions.Hotkey(("ctrl", "pagedown"))),
        ({"action": "key", "keys": ["A"]}, actions.Hotkey(("A",))),
        ({"action": "key", "keys": ["Ctrl", "C"]}, actions.Hotkey(("ctrl", "c"))),
        ({"action": "type", "text": "it's </tool_call>\n"}, actions.TypeText("it's </tool_call>\n")),
        ({"action": "wait", "time": 2.5}, actions.Wait()),
        ({"action": "wait"}, actions.Wait()),
        ({"action": "terminate", "status": "failure"}, actions.Fail()),
        ({"action": "answer", "text": "42"}, actions.Finished("42")),
    ],
    ids=str,
)
def test_actions_of_the_tool_beside_those_of_the_corpus(arguments, action):
    assert parse_response(called(**arguments)).actions == (action,)


def test_the_thought_is_what_stands_before_and_more_calls_may_follow():
    text = f"I open it.\n{called(action='left_click', coordinate=[1, 2])}\n{called(action='type', text='a')}\n"
    parsed = parse_response(text)
    assert parsed.thought == "I open it."
    assert render_response(parsed.actions[0], parsed.thought, *parsed.actions[1:]) == text.rstrip()
    assert parsed.actions == (actions.Click(1, 2), actions.TypeText("a"))
    with pytest.raises(ActionParseError, match="2 actions, more than max_actions=1") as refused:
        GRAMMARS["computer_use"].read(text, (), max_actions=1)
    assert refused.value.kind == "too_long"


def test_a_drag_begins_where_the_pointer_is():
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


def test_a_call_of_another_name_is_a_function_of_the_desktop():
    text = '<tool_call>{"name": "files.write", "arguments": {"path": "a", "n": 3, "x": 0.5, "all": true}}</tool_call>'
    wanted = actions.Call("files.write", {"path": "a", "n": 3, "x": 0.5, "all": True})
    assert parse_response(text).actions == (wanted,)
    assert parse_response(render_response(wanted)).actions == (wanted,)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("Action: click(start_box='(1,2)')", "no_action"),
        ("</tool_call>", "no_action"),
        (f"</tool_call>{called(action='wait')}", "bad_syntax"),
        ("<tool_call>", "bad_syntax"),
        (f"<tool_call>{called(action='wait')}", "bad_syntax"),
        (f"{called(action='wait')}</tool_call>", "bad_syntax"),
        ("<tool_call>[1]</tool_call>", "bad_syntax"),
        ('<tool_call>{"name": "computer_use"}</tool_call>', "bad_syntax"),
        ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', "bad_syntax"),
        ('<tool_call>{"name": "computer_use", "arguments": []}</tool_call>', "bad_syntax"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "bad_syntax"),
        (f"<tool_call>{'9' * 5000}</tool_call>", "bad_syntax"),
        (called(), "missing_argument"),
        (called(action="long_click", coordinate=[1, 2]), "unknown_action"),
        (called(action=["wait"]), "unknown_action"),
        (called(action="left_click", coordinate=[1]), "bad_box"),
        (called(action="left_click", coordinate=7), "bad_box"),
        (called(action="left_click", coordinte=[1, 2]), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2], text="ctrl"), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2], keys=["ctrl"]), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2], num_clicks=2), "bad_argument"),
        (called(action="left_click_drag", coordinate=[1, 2], start_coordinate=[3, 4]), "bad_argument"),
        (called(action="scroll", coordinate=[5, 6], pixels=5, direction="down"), "bad_argument"),
        (called(action="scroll", pixels=5, horizontal=True), "bad_argument"),
        (called(action="left_click_drag", coordinate=[1, 2], coordinate2=[7, 8]), "bad_argument"),
        (called(action="left_click_drag", coordinate=[1, 2, 7, 8]), "bad_box"),
        (called(action="type", text="a", keys=["enter"]), "bad_argument"),
        (called(action="key", keys=["ctrl"], text="c"), "bad_argument"),
        (called(action="key", keys=["down"], presses=3), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2], clickCount=2), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2], ctrl=True), "bad_argument"),
        (called(action="left_click", pixels=[5, 6]), "bad_argument"),
        (called(action="answer", text="none", status="failure"), "bad_argument"),
        (called(action="key", keys="[{[1]:2}]"), "bad_argument"),
        (quoted("{'action': 'wait', 1: 2}"), "bad_syntax"),
        ("<tool_call>{'name': 'f', 'arguments': {['a']: 2, **{}}}</tool_call>", "bad_syntax"),
        (quoted("{'action': 'type', 'text': 0x10}"), "bad_syntax"),
        (f"{called(action='wait') * 70}</think>", "bad_syntax"),
        (called(action="mouse_move"), "missing_argument"),
        (called(action="left_click_drag"), "missing_argument"),
        (called(action="type", text="a", press_enter=True), "bad_argument"),
        (called(action="type", text=None), "missing_argument"),
        (called(action="type", text=1.5), "bad_argument"),
        (called(action="terminate", stats="failure"), "bad_argument"),
        (f"{called(action='wait')}<tool_call", "bad_syntax"),
        (f"{called(action='wait')} No, I type: {called(action='type', text='a')}", "bad_syntax"),
        (called(action="wait").replace("computer_use", "computer"), "bad_call"),
        (f'{called(action="wait")} {{"name": "computer_use"', "bad_syntax"),
        (f"{called(action='wait')[:-12]} {called(action='wait')[1:]}", "bad_syntax"),
        (quoted("{'action': 'type', 'text': 'it's'}"), "bad_syntax"),
        (quoted("{'action': 'type', 'text': 'a''b'}"), "bad_syntax"),
        (quoted("{'action': 'type', 'text': 'a\\x41'}"), "bad_syntax"),
        (quoted("__import__('os')"), "bad_syntax"),
        (quoted("{'action': 'wait', 'action': 'type'}"), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2, 3]), "bad_box"),
        (called(action="left_click", coordinate=[True, 2]), "bad_box"),
        (called(action="left_click", coordinate=[10**400, 2]), "bad_box"),
        (called(action="left_click", coordinate=[float("nan"), 2]), "bad_argument"),
        (called(action="left_click", coordinate=[1, 2], button="right"), "bad_argument"),
        (called(action="key", keys=[]), "missing_argument"),
        (called(action="key", keys=["ctrl", 1.5]), "bad_argument"),
        (called(action="key", keys=["ctrl", "nokey"]), "bad_argument"),
        (called(action="scroll", pixels=0), "bad_argument"),
        (called(action="scroll", pixels="up"), "bad_argument"),
        (called(action="scroll"), "missing_argument"),
        (called(action="type", text="\ud800"), "bad_argument"),
        (called(action="terminate", status="done"), "bad_argument"),
        (
            '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "action": "type"}}</tool_call>',
            "bad_argument",
        ),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', "bad_call"),
        (r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>', "bad_argument"),
        (r'<tool_call>{"name": "\ud800", "arguments": {"name": "a"}}</tool_call>', "bad_argument"),
        ('<tool_call>{"name": "f", "arguments": {"function": 1}}</tool_call>', "bad_call"),
        ('<tool_call>{"name": "f", "arguments": {"a": [1]}}</tool_call>', "bad_call"),
        (f'<tool_call>{{"name": "f", "arguments": {{"a": {10**15}}}}}</tool_call>', "bad_call"),
        ("a" * 1_000_001, "too_long"),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else None,
)
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


def test_a_thought_with_the_tag_of_a_call_cannot_be_written():
    with pytest.raises(ValueError, match="a thought must not hold"):
        render_response(actions.Wait(), '{"name" is first')
    with pytest.raises(ValueError, match="a thought must not hold"):
        render_response(actions.Wait(), "first <tool_call>")


def test_the_prompt_lists_the_tool_and_the_functions_of_the_desktop():
    function = Function("files.write", {"path": "str", "n": "int"}, "Writes a file ✓.")
    prompt = Prompt.computer_use([function])
    assert "Writes a file ✓." in prompt.system  # as the chat template writes it
    assert prompt.grammar == "computer_use"
    lines = prompt.system.splitlines()
    tools = [json.loads(line)["function"] for line in lines[lines.index("<tools>") + 1 : lines.index("</tools>")]]
    assert [tool["name"] for tool in tools] == ["computer_use", "files.write"]
    assert tools[0]["parameters"]["properties"]["action"]["enum"][3] == "left_click"
    assert tools[1]["parameters"]["properties"] == {"path": {"type": "string"}, "n": {"type": "integer"}}
    user = {"role": "user", "content": [{"type": "text", "text": "Do it."}, {"type": "image"}]}
    assert prompt.messages("Do it.")[1:] == [user]


def test_the_shortest_prompt_shows_no_function_in_words_of_another_grammar():
    function = Function("files.write", {"path": "str"}, "Writes a file.")
    listed, _, rest = Prompt.compact_computer_use([function]).template.partition("\n")
    assert json.loads(listed)["function"]["parameters"]["required"] == ["path"]
    assert rest == Prompt.compact_computer_use().template == "{instruction}"


def test_a_chord_that_could_not_be_read_again_is_refused():
    """A step is stored in UI-TARS's words, which spell plus and minus and have a limit."""
    with pytest.raises(ActionParseError, match="more than 100") as refused:
        parse_response(called(action="key", keys=["+"] * 20))
    assert refused.value.kind == "bad_argument"
    (action,) = parse_response(called(action="key", keys=["ctrl", "shift", "alt", "launchmediaselect", "+"])).actions
    assert parse_action(action.describe()) == action
