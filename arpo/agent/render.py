"""Action to text: the exact inverse of `parser.py`, in the form that UI-TARS was trained to write."""

import math
import re
from collections.abc import Mapping
from typing import assert_never

from arpo.agent import actions
from arpo.agent.actions import INTEGER_DIGITS, Action, Pointer, Scalar
from arpo.agent.boxes import MAX_COORDINATE
from arpo.agent.keys import known_key
from arpo.agent.parser import POINTER, ParsedResponse, parse_response
from arpo.errors import ActionParseError

_ESCAPED = str.maketrans({"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "\t": r"\t"})

# Spelled out, because between other keys the bare sign would read as a joint ("ctrl + z").
_SPELLED = {"+": "plus", "-": "minus"}


def render(action: Action) -> str:
    """Return the call that `parse_action` reads as this action."""
    if isinstance(action, Pointer):
        return f"{_NAMES[type(action)]}({_pointer_arguments(action)})"
    match action:
        case actions.Hotkey(keys):
            arguments = f"key={_hotkey(keys)}"
        case actions.Press(key) | actions.KeyDown(key) | actions.KeyUp(key):
            arguments = f"key={_quote(_key(key))}"
        case actions.TypeText(text):
            arguments = f"content={_quote(text)}"
        case actions.Call(function, given):
            arguments = _call_arguments(function, given)
        case actions.Finished(content):
            arguments = f"content={_quote(content)}" if content else ""
        case actions.Wait() | actions.CallUser() | actions.Fail():
            arguments = ""
        case _:
            assert_never(action)
    return f"{_NAMES[type(action)]}({arguments})"


def render_response(action: Action, thought: str = "", *others: Action) -> str:
    """Return a whole response: a thought, if there is one, an action, and perhaps others behind it."""
    header = f"Thought: {thought.strip()}\n" if thought.strip() else ""
    text = "\n".join([f"{header}Action: {render(action)}", *map(render, others)])
    if "Action" in thought and not _is_read_as(text, thought.strip(), (action, *others)):
        raise ValueError(f"a thought must hold no call that could be read for the action, got {thought[:80]!r}")
    return text


def _is_read_as(text: str, thought: str, wanted: tuple[Action, ...]) -> bool:
    try:
        return parse_response(text) == ParsedResponse(thought, wanted)
    except ActionParseError:
        return False


_NAMES = {
    actions.Click: "click",
    actions.DoubleClick: "left_double",
    actions.RightClick: "right_single",
    actions.MiddleClick: "middle_click",
    actions.Hover: "hover",
    actions.Drag: "drag",
    actions.Scroll: "scroll",
    actions.Hotkey: "hotkey",
    actions.Press: "press",
    actions.KeyDown: "keydown",
    actions.KeyUp: "keyup",
    actions.TypeText: "type",
    actions.Wait: "wait",
    actions.Call: "call",
    actions.Finished: "finished",
    actions.CallUser: "call_user",
    actions.Fail: "error_env",
}


def _pointer_arguments(action: Pointer) -> str:
    match action:
        case actions.Drag(x, y, to_x, to_y):
            return f"start_box={_start(x, y)}, end_box={_point(to_x, to_y)}"
        case actions.Scroll(direction, x, y):
            where = "" if x is None or y is None else f"start_box={_point(x, y)}, "
            return f"{where}direction='{direction}'"
        case _:
            return f"start_box={_start(action.x, action.y)}"


def _start(x: float | None, y: float | None) -> str:
    return f"'{POINTER}'" if x is None or y is None else _point(x, y)


def _point(x: float, y: float) -> str:
    return f"'({_number(x)},{_number(y)})'"


def _number(value: float) -> str:
    if not math.isfinite(value) or abs(value) > MAX_COORDINATE:
        raise ValueError(f"a position must be a number between ±{MAX_COORDINATE:g}, got {value!r}")
    return str(int(value)) if value == int(value) else repr(float(value))


def _call_arguments(function: str, given: Mapping[str, Scalar]) -> str:
    if not function:
        raise ValueError("a call needs the name of a function, got none")
    for name in given:
        if name == "function" or not re.fullmatch(r"\w+", name):
            raise ValueError(f"an argument of a call must be a word other than 'function', got {name!r}")
    return ", ".join([f"function={_quote(function)}", *(f"{name}={_scalar(given[name])}" for name in given)])


def _scalar(value: Scalar) -> str:
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if abs(value) >= 10**INTEGER_DIGITS if isinstance(value, int) else not math.isfinite(value):
        raise ValueError(f"a number must be finite, and a whole one have at most {INTEGER_DIGITS} digits")
    return repr(value)


def _quote(text: str) -> str:
    return f"'{text.translate(_ESCAPED)}'"


def _hotkey(keys: tuple[str, ...]) -> str:
    if not keys:
        raise ValueError("a hotkey needs at least one key, got none")
    if len(keys) > 1 and any(key != key.lower() for key in keys):
        raise ValueError(f"the keys of a hotkey are lower case, got {keys!r}; add 'shift' for a capital")
    return _quote(" ".join(_key(key) for key in keys))


def _key(key: str) -> str:
    return _SPELLED.get(known_key(key), key)
