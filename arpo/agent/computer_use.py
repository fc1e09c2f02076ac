"""Response to actions and back, in the grammar of Qwen3-VL and GUI-Owl 1.5: JSON calls of one tool, `computer_use`.

    I click Save.                   a thought, optional
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 250]}}
    </tool_call>                    more calls may follow

The tool and its actions are those of Qwen's cookbook (QwenLM/Qwen3-VL, cookbooks/utils/agent_function_call.py). A call
of any other name is that of a function of the desktop. What is malformed is a named error and never a guess.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from arpo.agent import actions
from arpo.agent.actions import INTEGER_DIGITS, Action
from arpo.agent.boxes import MAX_COORDINATE
from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.keys import canonical_key
from arpo.agent.parser import (
    MAX_CHARACTERS,
    MAX_HOTKEY_CHARACTERS,
    ParsedResponse,
    check_length,
    check_number_of_actions,
)
from arpo.agent.render import render
from arpo.errors import ActionParseError

TOOL = "computer_use"
OPENING, CLOSING = "<tool_call>", "</tool_call>"
SCROLLED = 100
"""The amount of a scroll that is written; read is its sign alone, as an environment's wheel turns by steps."""

Call = tuple[str, Mapping[str, Any]]
"""The name of a function, and its arguments."""

_SPACE = re.compile(r"\s*+")


def parse_response(text: str, *, max_actions: int | None = None) -> ParsedResponse:
    """Return the thought and the actions of a response; arguments and errors are those of `arpo.agent.parser`."""
    return read_calls(text, _json, max_actions)


def read_calls(text: str, read: Callable[[str, int], tuple[Any, int]], max_actions: int | None) -> ParsedResponse:
    """Return the thought and the actions of a response.

    Args:
        text: The response.
        read: Reads the call that begins at a place of it, `{"name": …, "arguments": {…}}`; returns its end, too.
        max_actions: See `arpo.agent.parser`, as for errors.
    """
    check_length(text, "response", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    if not text.strip():
        raise ActionParseError(ParseErrorKind.EMPTY, "the response is empty")
    thought, tag, _ = text.partition(OPENING)
    if not tag:
        raise ActionParseError(ParseErrorKind.NO_ACTION, f"the response has no {OPENING}")
    if CLOSING in thought:
        _refuse(ParseErrorKind.BAD_SYNTAX, f"{CLOSING} stands before {OPENING}")
    found = _with_drags(_calls(text, len(thought), read))
    check_number_of_actions(found, max_actions)
    return ParsedResponse(thought.strip(), found)


def render_response(action: Action, thought: str = "", *others: Action) -> str:
    """Return a whole response: a thought, if there is one, an action, and perhaps others behind it.

    A `Press` is written, and so read, as a `Hotkey` of its key.

    Raises:
        ValueError: If no call means this action, or the thought holds a tag of a call.
    """
    return write_calls(_written, action, thought, *others)


def write_calls(write: Callable[[Call], str], action: Action, thought: str, *others: Action) -> str:
    """Return a whole response, of which `write` writes what stands between the tags of a call."""
    if OPENING in thought or CLOSING in thought:
        raise ValueError(f"a thought must not hold {OPENING} or {CLOSING}, got {thought[:80]!r}")
    said = [thought.strip()] if thought.strip() else []
    calls = [call for each in (action, *others) for call in _named(each)]
    return "\n".join([*said, *(f"{OPENING}\n{write(call)}\n{CLOSING}" for call in calls)])


# --- reading --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DragTo:
    """The end of a drag, which begins where the call before has moved the pointer."""

    x: float
    y: float


def _calls(text: str, at: int, read: Callable[[str, int], tuple[Any, int]]) -> list[Action | _DragTo]:
    found = []
    while at < len(text):
        if not text.startswith(OPENING, at):
            _refuse(ParseErrorKind.BAD_SYNTAX, f"expected {OPENING} or the end, got {text[at : at + 40]!r}")
        call, at = read(text, _skip(text, at + len(OPENING)))
        at = _skip(text, at)
        if not text.startswith(CLOSING, at):
            _refuse(ParseErrorKind.BAD_SYNTAX, f"expected {CLOSING}, got {text[at : at + 40]!r}")
        at = _skip(text, at + len(CLOSING))
        found.append(_action(call))
    return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "it matches nothing too"
    return match.end()


def _refuse(kind: ParseErrorKind, message: str) -> NoReturn:
    raise ActionParseError(kind, message)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(content := dict(pairs)) < len(pairs):
        _refuse(ParseErrorKind.BAD_ARGUMENT, "a call has a key twice")
    return content


def _no_number(name: str) -> NoReturn:
    _refuse(ParseErrorKind.BAD_ARGUMENT, f"{name} is no number")


DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_number)
"""A reader of JSON that knows no NaN, and no key twice."""


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        return DECODER.raw_decode(text, at)
    except ActionParseError:
        raise  # of the decoder's own hooks
    except (ValueError, RecursionError) as error:
        raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"a call is no JSON: {str(error)[:80]}") from error


def _action(call: Any) -> Action | _DragTo:
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
        _refuse(ParseErrorKind.BAD_SYNTAX, f"a call must be an object of name and arguments, got {str(call)[:80]}")
    name, given = call["name"], call["arguments"]
    if not isinstance(name, str) or not isinstance(given, dict):
        _refuse(ParseErrorKind.BAD_SYNTAX, "the name of a call must be a string, and its arguments an object")
    if name != TOOL:
        return _function(name, given)
    if "action" not in given:
        _refuse(ParseErrorKind.MISSING_ARGUMENT, f"{TOOL} needs an action")
    action = given["action"]
    rule = _RULES.get(action) if isinstance(action, str) else None
    if rule is None:
        message = f"unknown action {str(action)[:40]!r}; known are {', '.join(_RULES)}"
        _refuse(ParseErrorKind.UNKNOWN_ACTION, message)
    if others := given.keys() - {"action", *rule.arguments}:
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"{action} takes no {', '.join(sorted(others))[:80]}")
    return rule.build(given)


def _with_drags(found: Sequence[Action | _DragTo]) -> tuple[Action, ...]:
    """Return the actions, in which a move of the pointer and the end of a drag behind it are one."""
    joined: list[Action] = []
    for action in found:
        if not isinstance(action, _DragTo):
            joined.append(action)
            continue
        if not joined or not isinstance(joined[-1], actions.Hover):
            _refuse(ParseErrorKind.MISSING_ARGUMENT, "left_click_drag needs a mouse_move right before it")
        start = joined.pop()
        assert isinstance(start, actions.Hover)
        joined.append(actions.Drag(start.x, start.y, action.x, action.y))
    return tuple(joined)


def _function(name: str, given: Mapping[str, Any]) -> Action:
    if not name or not all(re.fullmatch(r"\w+", key) and key != "function" for key in given):
        _refuse(ParseErrorKind.BAD_CALL, f"{name[:40]!r} or one of its arguments is no name")
    for key, value in [("name", name), *given.items()]:  # an argument may have that name, too
        if isinstance(value, str):
            _text({key: value}, key)
        elif not isinstance(value, bool) and not _is_number(value, 10**INTEGER_DIGITS):
            _refuse(ParseErrorKind.BAD_CALL, f"{key[:40]} must be a string, a number, true or false")
    return actions.Call(name, given)


def _is_number(value: Any, below: float = math.inf) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < below
    return isinstance(value, float) and math.isfinite(value)


def _needed(given: Mapping[str, Any], name: str) -> Any:
    if name not in given:
        _refuse(ParseErrorKind.MISSING_ARGUMENT, f"{given.get('action', 'a call')} needs {name}")
    return given[name]


def _text(given: Mapping[str, Any], name: str) -> str:
    text = _needed(given, name)
    if not isinstance(text, str):
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"{name[:40]} must be a string, got {str(text)[:40]}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"{name[:40]} holds half a character") from error
    return text


def _point(given: Mapping[str, Any]) -> tuple[float, float]:
    point = _needed(given, "coordinate")
    if not isinstance(point, list) or len(point) != 2 or not all(map(_is_number, point)):
        _refuse(ParseErrorKind.BAD_BOX, f"a coordinate must be two numbers, got {str(point)[:40]}")
    if max(map(abs, point)) > MAX_COORDINATE:
        _refuse(ParseErrorKind.BAD_BOX, f"a coordinate must lie within ±{MAX_COORDINATE:g}, got {str(point)[:40]}")
    return float(point[0]), float(point[1])


def _pointed(kind: Callable[[float, float], Action | _DragTo], given: Mapping[str, Any]) -> Action | _DragTo:
    return kind(*_point(given))


def _keys(given: Mapping[str, Any]) -> Action:
    names = _needed(given, "keys")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"keys must be a list of names, got {str(names)[:40]}")
    keys = [canonical_key(name) for name in names]
    known = [key for key in keys if key is not None]
    if len(known) < len(keys):
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"unknown key in {str(names)[:80]}")
    action = actions.Hotkey(tuple(key.lower() for key in known) if len(known) > 1 else tuple(known))
    # as it is stored, so that it can be read again
    check_length(render(action), "hotkey", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    return action


def _scrolled(ways: tuple[actions.Direction, actions.Direction], given: Mapping[str, Any]) -> Action:
    amount = _needed(given, "pixels")
    if not _is_number(amount) or amount == 0:
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"pixels must be a number other than 0, got {str(amount)[:40]}")
    way = ways[0] if amount > 0 else ways[1]
    return actions.Scroll(way, *_point(given)) if "coordinate" in given else actions.Scroll(way)


def _ended(given: Mapping[str, Any]) -> Action:
    endings: dict[str, Action] = {"success": actions.Finished(), "failure": actions.Fail()}
    status = _text(given, "status")
    if status not in endings:
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"status must be success or failure, got {status[:40]!r}")
    return endings[status]


def _waited(given: Mapping[str, Any]) -> Action:
    if not _is_number(given.get("time", 0)):
        _refuse(ParseErrorKind.BAD_ARGUMENT, f"time must be a number, got {str(given['time'])[:40]}")
    return actions.Wait()


@dataclass(frozen=True, slots=True)
class _Rule:
    """The way to build one action, and the arguments that it takes."""

    build: Callable[[Mapping[str, Any]], Action | _DragTo]
    arguments: tuple[str, ...]


_double_click = _Rule(partial(_pointed, actions.DoubleClick), ("coordinate",))
_RULES: Mapping[str, _Rule] = {
    "left_click": _Rule(partial(_pointed, actions.Click), ("coordinate",)),
    "right_click": _Rule(partial(_pointed, actions.RightClick), ("coordinate",)),
    "middle_click": _Rule(partial(_pointed, actions.MiddleClick), ("coordinate",)),
    "double_click": _double_click,
    "triple_click": _double_click,  # as the cookbook simulates it
    "mouse_move": _Rule(partial(_pointed, actions.Hover), ("coordinate",)),
    "left_click_drag": _Rule(partial(_pointed, _DragTo), ("coordinate",)),
    "scroll": _Rule(partial(_scrolled, ("up", "down")), ("pixels", "coordinate")),
    "hscroll": _Rule(partial(_scrolled, ("right", "left")), ("pixels", "coordinate")),
    "key": _Rule(_keys, ("keys",)),
    "type": _Rule(lambda given: actions.TypeText(_text(given, "text")), ("text",)),
    "wait": _Rule(_waited, ("time",)),
    "terminate": _Rule(_ended, ("status",)),
    "answer": _Rule(lambda given: actions.Finished(_text(given, "text")), ("text",)),
}


# --- writing --------------------------------------------------------------------------------------------------------


def _written(call: Call) -> str:
    content = {"name": call[0], "arguments": call[1]}
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def _named(action: Action) -> list[Call]:
    """Return the calls that mean an action."""
    write = _WRITERS.get(type(action))
    if write is None:
        raise ValueError(f"{TOOL} has no action for {action}")
    return write(action)


def _use(action: str, **arguments: Any) -> Call:
    return TOOL, {"action": action, **arguments}


def _clicked(name: str, action: Any) -> list[Call]:
    return [_use(name, coordinate=_place(action.x, action.y))]


def _dragged(action: actions.Drag) -> list[Call]:
    return [*_clicked("mouse_move", action), _use("left_click_drag", coordinate=_place(action.to_x, action.to_y))]


def _turned(action: actions.Scroll) -> list[Call]:
    name = "scroll" if action.direction in ("up", "down") else "hscroll"
    amount = SCROLLED if action.direction in ("up", "right") else -SCROLLED
    where = {} if action.x is None or action.y is None else {"coordinate": _place(action.x, action.y)}
    return [_use(name, pixels=amount, **where)]


def _pressed(keys: Sequence[str]) -> list[Call]:
    if not keys or not all(canonical_key(key) == key and (len(keys) == 1 or key == key.lower()) for key in keys):
        raise ValueError(f"keys must be known ones, and lower case where there are several, got {keys}")
    return [_use("key", keys=list(keys))]


def _finished(action: actions.Finished) -> list[Call]:
    return [_use("answer", text=action.content) if action.content else _use("terminate", status="success")]


def _place(x: float, y: float) -> list[float]:
    if not all(math.isfinite(value) and abs(value) <= MAX_COORDINATE for value in (x, y)):
        raise ValueError(f"a position must be numbers between ±{MAX_COORDINATE:g}, got {(x, y)}")
    return [int(value) if value == int(value) else value for value in (x, y)]


_WRITERS: Mapping[type, Callable[[Any], list[Call]]] = {
    actions.Click: partial(_clicked, "left_click"),
    actions.RightClick: partial(_clicked, "right_click"),
    actions.MiddleClick: partial(_clicked, "middle_click"),
    actions.DoubleClick: partial(_clicked, "double_click"),
    actions.Hover: partial(_clicked, "mouse_move"),
    actions.Drag: _dragged,
    actions.Scroll: _turned,
    actions.Hotkey: lambda action: _pressed(action.keys),
    actions.Press: lambda action: _pressed([action.key]),
    actions.TypeText: lambda action: [_use("type", text=action.text)],
    actions.Wait: lambda _: [_use("wait", time=1)],
    actions.Call: lambda action: [(action.function, action.arguments)],
    actions.Finished: _finished,
    actions.Fail: lambda _: [_use("terminate", status="failure")],
}
