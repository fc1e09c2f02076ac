"""Pyautogui source to actions: what AgentNet and AGUVIS write, read as text. Nothing of it is run.

pyautogui.moveTo(x=0.3281, y=0.4697)            points are shares of the screen
pyautogui.dragTo(x=0.5025, y=0.6039, button='left')
computer.terminate(status='success')            and mobile.terminate, of AGUVIS
"""

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arpo.agent import actions
from arpo.agent.actions import Action, Drag, Hover, Scroll
from arpo.agent.response import MAX_CHARACTERS, ParseErrorKind, check_length, read_hotkey, read_key, refuse
from arpo.errors import ActionParseError

CLICKS: Mapping[str, tuple[str, int]] = {
    "click": ("left", 1),
    "rightClick": ("right", 1),
    "middleClick": ("middle", 1),
    "doubleClick": ("left", 2),
    "tripleClick": ("left", 3),
}
KEYS = {"press": actions.Press, "keyDown": actions.KeyDown, "keyUp": actions.KeyUp}
NAMES = {"click": ("x", "y", "clicks", "interval", "button"), "write": ("message",), "typewrite": ("message",)}
NAMES |= {"terminate": ("status",), "press": ("keys", "presses"), "keyDown": ("keys",), "keyUp": ("keys",)}
NAMES |= dict.fromkeys(("scroll", "vscroll", "hscroll"), ("clicks", "x", "y"))
"""The names of the first arguments, where they are not x and y alone."""


def read_pyautogui(source: str, width: int, height: int) -> tuple[Action, ...]:
    """Return the actions of source whose points are shares of a screen, in the pixels of that screen.

    A move right before a drag or a turn of the wheel is where that begins.

    Raises:
        ActionParseError: If it is something else than calls with plain arguments, or (`unknown_action`) a call that no
            action of ours is, such as a triple click.
    """
    check_length(source, "source", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    try:
        statements = [(ast.unparse(each)[:80], each) for each in ast.parse(source.strip()).body]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        refuse(ParseErrorKind.BAD_SYNTAX, f"{source[:80]!r} is no Python: {error}")
    found: list[Action] = []
    for text, statement in statements:
        for action in _read(text, statement, width, height):
            if isinstance(action, Drag | Scroll) and not action.start and found and isinstance(found[-1], Hover):
                x, y = found.pop().points[0]
                action = replace(action, x=x, y=y)  # noqa: PLW2901 - the same action, with its beginning
            found.append(action)
    return tuple(found) or refuse(ParseErrorKind.NO_ACTION, "there is no call")


def _read(text: str, statement: ast.stmt, width: int, height: int) -> list[Action]:
    match statement:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("pyautogui" | "computer" | "mobile"), name), args, keywords)):
            pass
        case _:
            refuse(ParseErrorKind.UNKNOWN_ACTION, f"{text} is no call of pyautogui")
    try:
        given = [ast.literal_eval(each) for each in args]
        named = dict(zip(NAMES.get(name, ("x", "y")), given, strict=False))
        named |= {str(each.arg): ast.literal_eval(each.value) for each in keywords}
        return _actions(name, given, named, (width, height))
    except ActionParseError as error:
        raise ActionParseError(error.kind, f"{text}: {error}") from error
    except (IndexError, KeyError, TypeError, ValueError) as error:
        refuse(ParseErrorKind.BAD_ARGUMENT, f"{text} has other arguments than it needs: {error!r}")


def _actions(name: str, given: list[Any], named: dict[str, Any], screen: tuple[int, int]) -> list[Action]:  # noqa: PLR0911 - one a kind
    match name:
        case _ if name in CLICKS:
            button, count = CLICKS[name]
            kind: Any = named.get("button", button), named.get("clicks", count)
            if kind not in actions.CLICKS:
                refuse(ParseErrorKind.UNKNOWN_ACTION, "no action of ours is that click")
            return [actions.Click(*(_at(named, screen) if "x" in named else (None, None)), *kind)]
        case "moveTo":
            return [Hover(*_at(named, screen))]
        case "dragTo":
            x, y = _point(named["from_coord"], screen) if "from_coord" in named else (None, None)
            return [Drag(x, y, *(_point(named["to_coord"], screen) if "to_coord" in named else _at(named, screen)))]
        case "scroll" | "vscroll" | "hscroll":
            amount = named.get("clicks", named.get("page", 0))
            if amount == 0:  # AGUVIS has some, whose direction stands in words beside them
                refuse(ParseErrorKind.UNKNOWN_ACTION, "it does not say how far")
            ways: tuple[Any, Any] = ("right", "left") if name == "hscroll" else ("up", "down")
            return [Scroll(ways[amount < 0], *(_at(named, screen) if "x" in named else ()))]
        case "write" | "typewrite":
            return [actions.TypeText("".join(named["message"]).encode().decode())]  # half a letter is an error
        case "press" | "keyDown" | "keyUp" if named.get("presses", 1) == 1:
            keys = named["key"] if "key" in named else named["keys"]
            return [KEYS[name](read_key(key)) for key in ([keys] if isinstance(keys, str) else keys)]
        case "hotkey":
            return [read_hotkey(named.get("keys") or (given if isinstance(given[0], str) else given[0]))]
        case "terminate":
            return [actions.Finished() if named["status"] == "success" else actions.Fail()]
    if name not in ("sleep", "wait"):
        refuse(ParseErrorKind.UNKNOWN_ACTION, "no action of ours is that call")
    return [actions.Wait()]


def _at(named: Mapping[str, Any], screen: tuple[int, int]) -> actions.Point:
    return _point((named["x"], named["y"]), screen)


def _point(pair: Any, screen: tuple[int, int]) -> actions.Point:
    x, y = pair
    if not (0 <= x <= 1 and 0 <= y <= 1):
        refuse(ParseErrorKind.BAD_ARGUMENT, "a point must be two shares of the screen, from 0 to 1")
    return x * screen[0], y * screen[1]
