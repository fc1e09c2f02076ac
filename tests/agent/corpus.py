"""Answers in the forms that models write, own texts all: grammar, response, what it means, and where the form is from.

The forms of UI-TARS's text are the rows of `test_answers.py` too; here stand whole responses of all three families.
"""

import json
from collections.abc import Iterator

from arpo.agent.actions import Action, Call, Click, Drag, Fail, Finished, Hotkey, Hover, Scroll, TypeText, Wait
from arpo.agent.prompt import GrammarName
from arpo.agent.response import ParseErrorKind
from arpo.agent.ui_tars import parse_response
from arpo.errors import ActionParseError

Row = tuple[GrammarName, str, tuple[Action, ...], str]

COOKBOOK = "the tool of Qwen's cookbook: what it says of itself"
TEMPLATE = "the chat template of the model"
AUTHORS = "what the authors' own program reads: OSWorld's agent for Qwen3-VL, GUI-Owl's desktop agent"
REPORT = "written by models, reported in public"
ENGINES = "what readers of inference engines take"
UI_TARS = "the prompt, the training examples and the parsers of UI-TARS"

EACH: tuple[tuple[dict[str, object], Action], ...] = (
    ({"action": "left_click", "coordinate": [512, 77]}, Click(512, 77)),
    ({"action": "left_click", "coordinate": [0, 999]}, Click(0, 999)),
    ({"action": "right_click", "coordinate": [3, 4]}, Click(3, 4, button="right")),
    ({"action": "middle_click", "coordinate": [3, 4]}, Click(3, 4, button="middle")),
    ({"action": "double_click", "coordinate": [3, 4]}, Click(3, 4, count=2)),
    ({"action": "triple_click", "coordinate": [3, 4]}, Click(3, 4, count=2)),
    ({"action": "mouse_move", "coordinate": [3, 4]}, Hover(3, 4)),
    ({"action": "left_click_drag", "coordinate": [700, 400]}, Drag(None, None, 700, 400)),
    ({"action": "left_click"}, Click()),
    ({"action": "right_click"}, Click(button="right")),
    ({"action": "double_click"}, Click(count=2)),
    ({"action": "scroll", "pixels": -5}, Scroll("down")),
    ({"action": "scroll", "pixels": 300, "coordinate": [5, 6]}, Scroll("up", 5, 6)),
    ({"action": "hscroll", "pixels": -10}, Scroll("left")),
    ({"action": "key", "keys": ["ctrl", "s"]}, Hotkey(("ctrl", "s"))),
    ({"action": "key", "keys": ["Return"]}, Hotkey(("enter",))),
    ({"action": "key", "keys": ["page down"]}, Hotkey(("pagedown",))),
    ({"action": "key", "keys": ["shift", "caps lock"]}, Hotkey(("shift", "capslock"))),
    ({"action": "key", "keys": ["ctrl+shift", "t"]}, Hotkey(("ctrl", "shift", "t"))),
    ({"action": "key", "keys": "enter"}, Hotkey(("enter",))),
    ({"action": "key", "keys": "ctrl+a"}, Hotkey(("ctrl", "a"))),
    ({"action": "type", "text": 'Grüße, 你好 "so" it\'s'}, TypeText('Grüße, 你好 "so" it\'s')),
    ({"action": "type", "text": "a\n\tb\n"}, TypeText("a\n\tb\n")),
    ({"action": "type", "text": "</think> <tool_call>"}, TypeText("</think> <tool_call>")),
    ({"action": "type", "text": "C:\\new\\table"}, TypeText("C:\\new\\table")),
    ({"action": "type", "text": "42"}, TypeText("42")),
    ({"action": "type", "text": ""}, TypeText("")),
    ({"action": "wait", "time": 2}, Wait()),
    ({"action": "wait"}, Wait()),
    ({"action": "terminate", "status": "success"}, Finished()),
    ({"action": "terminate", "status": "failure"}, Fail()),
    ({"action": "terminate"}, Finished()),
    ({"action": "answer", "text": "It is 7."}, Finished("It is 7.")),
    ({"action": "left_click", "coordinate": [5, 6], "text": ""}, Click(5, 6)),
    ({"action": "left_click", "coordinate": [5, 6], "keys": [], "pixels": 0}, Click(5, 6)),
    ({"action": "left_click", "coordinate": [5, 6], "button": "left"}, Click(5, 6)),
    ({"action": "left_click", "coordinate": [5, 6], "description": "the OK button"}, Click(5, 6)),
    ({"action": "type", "text": "a", "coordinate": [5, 6]}, TypeText("a")),
    ({"action": "terminate", "status": "success", "text": "All done."}, Finished()),
    ({"action": "left_click", "coordinate": [10, 20, 30, 40]}, Click(20, 30)),
    ({"action": "left_click", "coordinate": "(5, 6)"}, Click(5, 6)),
    ({"action": " left_click ", "coordinate": [5, 6]}, Click(5, 6)),
    ({"action": "key", "keys": [1]}, Hotkey(("1",))),
    ({"action": "right_click", "coordinate": [0, 999.5]}, Click(0, 999.5, button="right")),
    ({"action": "hscroll", "pixels": 1}, Scroll("right")),
    ({"action": "key", "keys": ["ctrl", "Page_Down"]}, Hotkey(("ctrl", "pagedown"))),
    ({"action": "key", "keys": ["Ctrl", "C"]}, Hotkey(("ctrl", "c"))),
    ({"action": "key", "keys": ["A"]}, Hotkey(("A",))),
    ({"action": "type", "text": "it's </tool_call>\n"}, TypeText("it's </tool_call>\n")),
    ({"action": "wait", "time": 2.5}, Wait()),
)
"""Each action of the tool, and arguments as models give them: both grammars of calls write these."""


def json_call(arguments: dict[str, object], name: str = "computer_use") -> str:
    """The form that Qwen3-VL's template writes."""
    content = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{content}\n</tool_call>"


def xml_call(arguments: dict[str, object], name: str = "computer_use") -> str:
    """The form that Qwen3.5's template writes."""
    values = {key: json.dumps(value) if isinstance(value, list) else str(value) for key, value in arguments.items()}
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


WAIT: dict[str, object] = {"action": "wait"}
CLICK: dict[str, object] = {"action": "left_click", "coordinate": [5, 6]}
MOVE: dict[str, object] = {"action": "mouse_move", "coordinate": [1, 2]}
DRAG: dict[str, object] = {"action": "left_click_drag", "coordinate": [3, 4]}


def around(call: str, other: str, move: str, drag: str) -> Iterator[tuple[str, tuple[Action, ...], str]]:
    """What stands around calls, in both grammars."""
    clicked = (Click(5, 6),)
    yield f"I click OK.\n\n{call}", clicked, TEMPLATE
    yield f'The file has {{"name": "action"}}.\n{call}', clicked, TEMPLATE
    yield f"{call}\n<|im_end|>", clicked, REPORT
    yield f"{call}\n<conclusion>\nI have clicked.\n</conclusion>", clicked, REPORT
    yield f"{call}\n\nThen the dialog closes.", clicked, AUTHORS
    yield call.removesuffix("\n</tool_call>"), clicked, REPORT
    yield f"Thought first.\n{call.removesuffix('</tool_call>')}", clicked, ENGINES
    yield f"<think>\nOK is at the right.\n</think>\n\n{call}", clicked, TEMPLATE
    yield f"OK is at the right.\n</think>\n\n{call}", clicked, TEMPLATE
    yield f"I will use <tool_call> for the click.\n</think>\n\n{call}", clicked, REPORT
    yield f"First I wait:\n{other}\nNo, better not.\n</think>\n\n{call}", clicked, REPORT
    yield f"{other[:30]}\nNo.\n</think>\nNow.\n{call}", clicked, REPORT
    yield f"{call}\n{other}", (*clicked, Wait()), COOKBOOK
    yield f"{call}{other}", (*clicked, Wait()), ENGINES
    yield f"{move}\n{drag}", (Drag(1, 2, 3, 4),), COOKBOOK
    yield f"{call}\n{drag}", (*clicked, Drag(None, None, 3, 4)), AUTHORS
    yield call.replace("\n", ""), clicked, REPORT
    yield call.replace("\n", "\n  "), clicked, REPORT


def of_json() -> Iterator[tuple[str, tuple[Action, ...], str]]:
    """What Qwen3-VL and GUI-Owl 1.5 write."""
    for arguments, action in EACH:
        yield json_call(arguments), (action,), COOKBOOK
    yield from around(*map(json_call, (CLICK, WAIT, MOVE, DRAG)))
    python = '{"name": "computer_use", "arguments": %s}'
    yield f"<tool_call>\n{{'name': 'computer_use', 'arguments': {CLICK}}}\n</tool_call>", (Click(5, 6),), AUTHORS
    yield f"<tool_call>\n{python % CLICK}\n</tool_call>", (Click(5, 6),), AUTHORS
    typed = {"action": "type", "text": 'say "it"', "status": None}
    yield f"<tool_call>\n{python % typed}\n</tool_call>", (TypeText('say "it"'),), AUTHORS
    point = "{'action': 'left_click', 'coordinate': (5, 6), 'final': true}"
    yield f"<tool_call>\n{python % point}\n</tool_call>", (Click(5, 6),), AUTHORS
    yield json_call(CLICK).replace("]}}", "],}}"), (Click(5, 6),), AUTHORS
    yield json_call({"action": "type", "text": "a"}).replace('"a"', '"a\nb\tc"'), (TypeText("a\nb\tc"),), REPORT
    yield json_call({"action": "type", "text": "a"}).replace('"a"', "7"), (TypeText("7"),), REPORT
    yield json_call(CLICK)[len("<tool_call>\n") : -len("\n</tool_call>")], (Click(5, 6),), REPORT
    yield "Thought.\n</think>\n" + json_call(CLICK)[len("<tool_call>\n") :], (Click(5, 6),), REPORT
    yield json_call({"action": "wait", "time": None}), (Wait(),), REPORT
    yield json_call({"action": "left_click", "coordinate": ["5", "6"]}), (Click(5, 6),), REPORT
    yield json_call({"action": "left_click", "coordinate": {"x": 5, "y": 6}}), (Click(5, 6),), REPORT
    yield json_call({"action": "scroll", "pixels": "-3"}), (Scroll("down"),), REPORT
    written = Call("files.write", {"path": "a", "n": 3, "all": True})
    yield json_call(dict(written.arguments), "files.write"), (written,), TEMPLATE


def of_xml() -> Iterator[tuple[str, tuple[Action, ...], str]]:
    """What Qwen3.5 writes."""
    for arguments, action in EACH:
        yield xml_call(arguments), (action,), TEMPLATE
    yield from around(*map(xml_call, (CLICK, WAIT, MOVE, DRAG)))
    bare = xml_call(CLICK).removeprefix("<tool_call>\n")
    yield bare, (Click(5, 6),), REPORT
    yield f"I click.\n\n{bare}", (Click(5, 6),), REPORT
    yield f"I click.\n\n{bare.removesuffix('</tool_call>')}", (Click(5, 6),), REPORT
    yield f"{bare}\n{xml_call(WAIT)}", (Click(5, 6), Wait()), REPORT
    yield xml_call(CLICK).replace("left_click", "  left_click "), (Click(5, 6),), REPORT
    spaced = xml_call(CLICK).replace("=action>", "= action >").replace("=computer_use>", "=computer_use >")
    yield spaced, (Click(5, 6),), REPORT
    yield xml_call({"action": "key", "keys": "['ctrl', 'c']"}), (Hotkey(("ctrl", "c")),), TEMPLATE
    yield xml_call({"action": "key", "keys": '"tab"'}), (Hotkey(("tab",)),), REPORT
    yield xml_call({"action": "left_click", "coordinate": "5, 6"}), (Click(5, 6),), REPORT
    yield xml_call({"action": "type", "text": "<b> & </tool_call>"}), (TypeText("<b> & </tool_call>"),), TEMPLATE
    for texts in ({"text": "42", "all": "True"}, {"text": '"yes"'}):
        yield xml_call(dict(texts), "mousepad.write"), (Call("mousepad.write", texts),), REPORT


def of_text() -> Iterator[tuple[str, tuple[Action, ...], str]]:
    """What UI-TARS writes."""
    box = "<|box_start|>(5,6)<|box_end|>"
    calls: tuple[tuple[str, Action], ...] = (
        (f"click(start_box='{box}')", Click(5, 6)),
        ("click(start_box='(5,6)')", Click(5, 6)),
        ("click(point='<point>5 6</point>')", Click(5, 6)),
        ("left_double(start_box='(5,6)')", Click(5, 6, count=2)),
        ("right_single(start_box='(5,6)')", Click(5, 6, button="right")),
        ("hover(start_box='(5,6)')", Hover(5, 6)),
        ("move_to(point='<point>5 6</point>')", Hover(5, 6)),
        ("drag(start_box='(1,2)', end_box='(3,4)')", Drag(1, 2, 3, 4)),
        ("scroll(start_box='(5,6)', direction='down')", Scroll("down", 5, 6)),
        ("scroll(direction='up')", Scroll("up")),
        ("hotkey(key='ctrl s')", Hotkey(("ctrl", "s"))),
        ("hotkey(key='page down')", Hotkey(("pagedown",))),
        (r"type(content='it\'s\n')", TypeText("it's\n")),
        ("type(content='a', start_box='(5,6)')", TypeText("a")),
        ("wait()", Wait()),
        ("wait(time='2')", Wait()),
        ("finished(content='Done.')", Finished("Done.")),
        ("error_env()", Fail()),
        ("call(function='files.write', path='a', n=3)", Call("files.write", {"path": "a", "n": 3})),
    )
    for call, action in calls:
        yield f"Thought: I do it.\nAction: {call}", (action,), UI_TARS
        yield call, (action,), UI_TARS
    yield "I look.\nAction: wait() is no use.\n</think>\nAction: click(start_box='(5,6)')", (Click(5, 6),), REPORT
    yield "Action: type(content='</think>')", (TypeText("</think>"),), REPORT
    yield "Action: click(start_box='(5,6)')\ntype(content='a')", (Click(5, 6), TypeText("a")), UI_TARS


CORPUS: list[Row] = [
    *(("ui_tars", *row) for row in of_text()),
    *(("computer_use", *row) for row in of_json()),
    *(("computer_use_xml", *row) for row in of_xml()),
]


def read(response: str) -> object:
    """The action of an answer of UI-TARS, or its actions, or the kind of the error."""
    try:
        found = parse_response(response).actions
    except ActionParseError as error:
        return ParseErrorKind(error.kind).value
    return found[0] if len(found) == 1 else found
