"""Response to actions and back, in the grammar of Qwen3-VL and GUI-Owl 1.5: JSON calls of one tool, `computer_use`.

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 250]}}
    </tool_call>

The tool and its actions are those of Qwen's cookbook (QwenLM/Qwen3-VL, cookbooks/utils/agent_function_call.py). A call
of any other name is that of a function of the desktop. What is malformed is a named error and never a guess.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Literal, NamedTuple

from arpo.agent import actions
from arpo.agent.actions import INTEGER_DIGITS, Action, Point, plain_point
from arpo.agent.keys import canonical_key, split_keys
from arpo.agent.response import (
    BLANK,
    MAX_HOTKEY_CHARACTERS,
    ParsedResponse,
    ParseErrorKind,
    check_extra,
    check_length,
    read_hotkey,
    read_point,
    refuse,
)
from arpo.agent.tool_calls import Call, ReadCall, read_calls, read_json, write_calls
from arpo.errors import ActionParseError

SCROLLED = 100
"""The amount of a scroll that is written; read is its sign alone, as an environment's wheel turns by steps."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{0,15})?")
_NUMERAL = re.compile(r"[0-9.]+(?:e[+-]?[0-9]+)?")
OPENING = re.compile(r"<tool_call>|(?:\A|(?<=</think>))\s*(?=\{\s*[\"']name[\"'])")
"""The beginning of a call: of one that is the whole response, the tag may be missing."""


def parse_response(text: str, tool: "Tool | None" = None) -> ParsedResponse:
    """Return the thought and the actions of a response."""
    return (tool or COMPUTER).parse(text, read_call, OPENING)


def render_response(action: Action, thought: str = "", *others: Action, tool: "Tool | None" = None) -> str:
    """Return a whole response: a thought, if there is one, an action, and perhaps others behind it.

    A `Press` is written, and so read, as a `Hotkey` of its key.
    """
    calls = [{"name": name, "arguments": given} for name, given in calls_of(action, *others, tool=tool)]
    return write_calls([json.dumps(call, ensure_ascii=False, allow_nan=False) for call in calls], thought, "\n")


def calls_of(*wanted: Action, tool: "Tool | None" = None) -> list[Call]:
    """Return the calls that mean some actions."""
    return [call for action in wanted for call in (tool or COMPUTER).calls(action)]


Writer = Callable[[Any], list[dict[str, Any]]]
"""Returns the arguments of each call that means an action."""


class Rule(NamedTuple):
    """The way to build one action, and the arguments that it takes."""

    build: Callable[[Mapping[str, Any]], Action]
    arguments: tuple[str, ...]
    optional: str | None = None
    """The one of them that may be missing; another argument is then no longer ignored, as it may be this one."""


class Tool(NamedTuple):
    """A tool by whose calls a model acts, with the table of its actions: how each is read, and how each is written."""

    name: str
    rules: Mapping[str, Rule]
    writers: Mapping[type, Writer]
    others: Set[str]
    """Its arguments that some actions alone take, and that ask any other one for more than it does."""

    def parse(self, text: str, read: ReadCall, opening: re.Pattern[str]) -> ParsedResponse:
        """Return the thought and the actions of a response whose calls `read` reads, as `read_calls` has it.

        A move of the pointer and a drag from there are one action.
        """
        thought, calls = read_calls(text, read, opening)
        found: list[Action] = []
        for name, given in calls:
            action, before = self._read(name, given), found[-1] if found else None
            if isinstance(action, actions.Drag) and action.x is None and isinstance(before, actions.Hover):
                found[-1] = action.begun_at(before.points[0])
            else:
                found.append(action)
        return ParsedResponse(thought, tuple(found))

    def calls(self, action: Action) -> list[Call]:
        """Return the calls that mean an action."""
        if isinstance(action, actions.Call):
            return [(action.function, action.arguments)]
        if type(action) not in self.writers:
            raise ValueError(f"{self.name} has no action for {action}")
        return [(self.name, given) for given in self.writers[type(action)](action)]

    def _read(self, name: str, given: Mapping[str, Any]) -> Action:
        if name.strip() != self.name:
            return self._function(name, given)
        if "action" not in given:
            refuse(ParseErrorKind.MISSING_ARGUMENT, f"{self.name} needs an action")
        action = given["action"]
        rule = self.rules.get(action.strip()) if isinstance(action, str) else None
        if rule is None:
            names = ", ".join(self.rules)
            refuse(ParseErrorKind.UNKNOWN_ACTION, f"unknown action {str(action)[:40]!r}; known are {names}")
        taken = {key: given.get(key) for key in rule.arguments if key == "text" or not _is_blank(given.get(key))}
        incomplete = rule.optional is not None and rule.optional not in taken
        known = {name for rule in self.rules.values() for name in rule.arguments} | {"action", "time"}
        ignored = {"action", "status"} if incomplete else known - self.others
        extra = {key: str(value) for key, value in given.items() if key not in ignored and key not in rule.arguments}
        check_extra(action, extra, incomplete=incomplete, others=self.others)
        return rule.build({"action": action, **taken})

    def _function(self, name: str, given: Mapping[str, Any]) -> Action:
        if str(given.get("action")).strip() in self.rules:
            problem = f"there is no tool {name[:40]!r} with such an action; the tool is {self.name}"
            refuse(ParseErrorKind.BAD_CALL, problem)
        if not name or not all(re.fullmatch(r"\w+", key) and key != "function" for key in given):
            refuse(ParseErrorKind.BAD_CALL, f"{name[:40]!r} or one of its arguments is no name")
        for key, value in [("name", name), *given.items()]:  # an argument may have that name, too
            if isinstance(value, str):
                read_string({key: value}, key)
            elif not isinstance(value, bool) and not _is_number(value, 10**INTEGER_DIGITS):
                refuse(ParseErrorKind.BAD_CALL, f"{key[:40]} must be a string, a number, true or false")
        return actions.Call(name, given)


# --- reading --------------------------------------------------------------------------------------------------------


def read_call(text: str, at: int) -> tuple[Call, int]:
    """Return the call that begins at a place of a text, and its end."""
    call, end = read_json(text, at)
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        refuse(ParseErrorKind.BAD_SYNTAX, f"a call must be an object of name and arguments, got {str(call)[:80]}")
    name, given = call["name"], call["arguments"]
    if not isinstance(name, str) or not isinstance(given, dict):
        refuse(ParseErrorKind.BAD_SYNTAX, "the name of a call must be a string, and its arguments an object")
    return (name, given), end


def _is_blank(value: Any) -> bool:
    """Return whether an argument is missing, or stands there for form's sake."""
    return value is None or (isinstance(value, str | list) and str(value).strip() in BLANK)


def _is_number(value: Any, below: float = math.inf) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < below
    return isinstance(value, float) and math.isfinite(value)


def _needed(given: Mapping[str, Any], name: str) -> Any:
    if given.get(name) is None:
        refuse(ParseErrorKind.MISSING_ARGUMENT, f"{given.get('action', 'a call')} needs {name}")
    return given[name]


def read_string(given: Mapping[str, Any], name: str) -> str:
    """Return an argument that is a text."""
    text = _needed(given, name)
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)  # its type is the schema's, whatever it looks like
    if not isinstance(text, str):
        refuse(ParseErrorKind.BAD_ARGUMENT, f"{name[:40]} must be a string, got {str(text)[:40]}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"{name[:40]} holds half a character") from error
    return text


def read_place(given: Mapping[str, Any], name: str = "coordinate") -> Point:
    """Return an argument that is a position."""
    found = _needed(given, name)
    if isinstance(found, dict) and found.keys() == {"x", "y"}:
        found = [found["x"], found["y"]]
    return read_point(str(found).replace("'", "") if isinstance(found, list) else str(found))


def _dragged_to(given: Mapping[str, Any]) -> Action:
    if len(_NUMERAL.findall(str(_needed(given, "coordinate")))) > 2:
        refuse(ParseErrorKind.BAD_BOX, f"a drag ends at one point, got {str(given['coordinate'])[:40]}")
    return actions.Drag(None, None, *read_place(given))


def _start(given: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the place of a click; none where the pointer is."""
    return read_place(given) if "coordinate" in given else (None, None)


def _keys(given: Mapping[str, Any]) -> Action:
    found = _needed(given, "keys")
    if isinstance(found, str) and len(found) > 1 and found[0] in "[\"'":
        try:
            found, end = read_json(given["keys"], 0)
        except ActionParseError as error:
            raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"keys are no list of names: {error}") from error
        if end < len(given["keys"]):
            refuse(ParseErrorKind.BAD_ARGUMENT, f"keys must be one list of names, got {given['keys'][:40]}")
    names = [str(name) if type(name) is int else name for name in (found if isinstance(found, list) else [found])]
    if not names or not all(isinstance(name, str) for name in names):
        refuse(ParseErrorKind.BAD_ARGUMENT, f"keys must be a list of names, got {str(names)[:40]}")
    for name in names:
        check_length(name, "name of a key", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    action = read_hotkey(part for name in names for part in split_keys(name))
    # as it is stored, so that it can be read again
    check_length(action.describe(), "hotkey", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    return action


def _scrolled(ways: tuple[actions.Direction, actions.Direction], given: Mapping[str, Any]) -> Action:
    amount = _needed(given, "pixels")
    if isinstance(amount, str) and _NUMBER.fullmatch(amount.strip()):
        amount = float(amount)
    if not _is_number(amount) or amount == 0:
        refuse(ParseErrorKind.BAD_ARGUMENT, f"pixels must be a number other than 0, got {str(amount)[:40]}")
    return actions.Scroll(ways[0] if amount > 0 else ways[1], *_start(given))


def _ended(given: Mapping[str, Any]) -> Action:
    endings: dict[str, Action] = {"success": actions.Finished(), "failure": actions.Fail()}
    status = read_string(given, "status").strip().lower() if "status" in given else "success"
    if status not in endings:
        refuse(ParseErrorKind.BAD_ARGUMENT, f"status must be success or failure, got {status[:40]!r}")
    return endings[status]


def _answered(given: Mapping[str, Any]) -> Action:
    if isinstance(_ended(given), actions.Fail):
        refuse(ParseErrorKind.BAD_ARGUMENT, "an answer is no failure: terminate says that")
    return actions.Finished(read_string(given, "text"))


# --- writing --------------------------------------------------------------------------------------------------------


def _clicked(action: actions.Click) -> list[dict[str, Any]]:
    if (action.button, action.count) not in _CLICKS:
        raise ValueError(f"computer_use has no action for {action}")
    return [{"action": _CLICKS[action.button, action.count], **write_place(action.x, action.y)}]


def _dragged(action: actions.Drag) -> list[dict[str, Any]]:
    start = [{"action": "mouse_move", **write_place(*point)} for point in action.start]
    return [*start, {"action": "left_click_drag", **write_place(action.to_x, action.to_y)}]


def _turned(action: actions.Scroll) -> list[dict[str, Any]]:
    name = "scroll" if action.direction in ("up", "down") else "hscroll"
    amount = SCROLLED if action.direction in ("up", "right") else -SCROLLED
    return [{"action": name, "pixels": amount, **write_place(action.x, action.y)}]


def _pressed(keys: Sequence[str]) -> list[dict[str, Any]]:
    if not keys or not all(canonical_key(key) == key and (len(keys) == 1 or key == key.lower()) for key in keys):
        raise ValueError(f"keys must be known ones, and lower case where there are several, got {keys}")
    return [{"action": "key", "keys": list(keys)}]


def write_place(x: float | None, y: float | None, name: str = "coordinate") -> dict[str, list[float]]:
    """Return the argument that is a position; none where the pointer is."""
    return {} if x is None or y is None else {name: plain_point(x, y)}


def _click(button: actions.Button, count: Literal[1, 2]) -> Rule:
    return Rule(lambda given: actions.Click(*_start(given), button, count), ("coordinate",), "coordinate")


_CLICKS: Mapping[tuple[actions.Button, Literal[1, 2]], str] = {
    ("left", 1): "left_click",
    ("right", 1): "right_click",
    ("middle", 1): "middle_click",
    ("left", 2): "double_click",
}
_scroll = ("pixels", "coordinate"), "coordinate"
_RULES: Mapping[str, Rule] = {
    **{name: _click(*clicks) for clicks, name in _CLICKS.items()},
    "triple_click": _click("left", 2),  # as the cookbook simulates it
    "mouse_move": Rule(lambda given: actions.Hover(*read_place(given)), ("coordinate",)),
    "left_click_drag": Rule(_dragged_to, ("coordinate",), "start"),
    "scroll": Rule(partial(_scrolled, ("up", "down")), *_scroll),
    "hscroll": Rule(partial(_scrolled, ("right", "left")), *_scroll),
    "key": Rule(_keys, ("keys",)),
    "type": Rule(lambda given: actions.TypeText(read_string(given, "text")), ("text",)),
    "wait": Rule(lambda _: actions.Wait(), ()),
    "terminate": Rule(_ended, ("status", "text"), "status"),
    "answer": Rule(_answered, ("text", "status")),
}
_WRITERS: Mapping[type, Writer] = {
    actions.Click: _clicked,
    actions.Hover: lambda action: [{"action": "mouse_move", **write_place(action.x, action.y)}],
    actions.Drag: _dragged,
    actions.Scroll: _turned,
    actions.Hotkey: lambda action: _pressed(action.keys),
    actions.Press: lambda action: _pressed([action.key]),
    actions.TypeText: lambda action: [{"action": "type", "text": action.text}],
    actions.Wait: lambda _: [{"action": "wait", "time": 1}],
    actions.Finished: lambda action: [
        {"action": "answer", "text": action.content}
        if action.content
        else {"action": "terminate", "status": "success"}
    ],
    actions.Fail: lambda _: [{"action": "terminate", "status": "failure"}],
}
COMPUTER = Tool("computer_use", _RULES, _WRITERS, others={"keys", "text"})
