"""Response to actions and back: UI-TARS's grammar whole, in linear time, without evaluating what a model wrote.

    Thought: …                                      optional, as is any other text before the action
    Action: click(start_box='(966,546)')            more actions on further lines

and, beside it, `call(function='mousepad.open', path='~/note.txt')`, which calls a function of the desktop.

An answer is what the model's authors read, `codes/ui_tars/action_parser.py` of bytedance/UI-TARS ("the Python parser"
below) and the parsers of UI-TARS-desktop with their tests ("the desktop's"), and what their prompts and
`data/training_example.json` contain. Where these would type half of a text, it is refused (`ui_tars_syntax.py`).

Coordinates are pixels of the image that the model saw; `CoordinateFrame` takes them to the screen. An action is
written as it describes itself, in the form that UI-TARS was trained to write.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

from arpo.agent import actions, phone
from arpo.agent.actions import INTEGER_DIGITS, POINTER, Action, Direction, Scalar
from arpo.agent.keys import split_keys
from arpo.agent.response import (
    MAX_CHARACTERS,
    MAX_HOTKEY_CHARACTERS,
    THOUGHT_ENDS,
    ParsedResponse,
    ParseErrorKind,
    check_extra,
    check_length,
    read_hotkey,
    read_key,
    read_point,
    refuse,
)
from arpo.agent.ui_tars_syntax import Call, Grammar, TypedTextError, Value, read_calls
from arpo.errors import ActionParseError

_LABEL = re.compile("Action[:：]")
"""The full-width colon is in the tests of the desktop's parser."""

_THOUGHTS = [re.compile(f"{name}[:：]") for name in ("Thought", "Action_Summary", "Reflection")]
"""The first of them that is there counts, as in the Python parser."""

_ENDINGS = ("</Output>", "</computer_env>", "[EOS]", "```")
"""What may close a response: the desktop's parser knows the first two, the Python parser the third, and the last one
is the fence in which the prompt shows the format."""


def parse_response(text: str, table: "Table | None" = None) -> ParsedResponse:
    """Return the thought and the actions of a response, or raise an `ActionParseError` of a `ParseErrorKind`.

    Without a label the response must be calls and nothing else, as for the desktop's parser: prose is no action.
    """
    check_length(text, "response", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    if not text.strip():
        refuse(ParseErrorKind.EMPTY, "the response is empty")
    head, _, rest = text.rpartition(THOUGHT_ENDS)
    if not head or not _LABEL.search(rest):  # else it stands in a text that is typed
        head, rest = "", text
    rest = rest.strip()
    for ending in _ENDINGS:
        rest = rest.removesuffix(ending).rstrip()
    response = _read(rest, table or DESKTOP)
    return response if response.thought else replace(response, thought=head.strip())


def parse_actions(text: str) -> tuple[Action, ...]:
    """Return the actions of calls, one a line, as a step of a trajectory has them: `click(start_box='(10,20)')`."""
    check_length(text, "action", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    return _actions(text, RECORDED)


def parse_action(text: str) -> Action:
    """Return the action of one call such as `click(start_box='(10,20)')`."""
    found = parse_actions(text)
    if len(found) > 1:
        refuse(ParseErrorKind.BAD_SYNTAX, f"expected one action, got {len(found)}")
    return found[0]


def render_response(action: Action, thought: str = "", *others: Action, table: "Table | None" = None) -> str:
    """Return a whole response: a thought, if there is one, an action, and perhaps others behind it."""
    known = (table or DESKTOP).syntax.actions
    if missing := [each for each in (action, *others) if each.describe().partition("(")[0] not in known]:
        raise ValueError(f"the grammar has no words for {missing[0]}")
    header = f"Thought: {thought.strip()}\n" if thought.strip() else ""
    text = "\n".join([f"{header}Action: {action.describe()}", *(other.describe() for other in others)])
    if "Action" in thought:
        read = None
        with suppress(ActionParseError):
            read = parse_response(text, table)
        if read != ParsedResponse(thought.strip(), (action, *others)):
            raise ValueError(f"a thought must hold no call that could be read for the action, got {thought[:80]!r}")
    return text


def _read(text: str, table: "Table") -> ParsedResponse:
    labels = list(_LABEL.finditer(text))
    if not labels:
        try:
            return ParsedResponse("", _actions(text, table))
        except ActionParseError as error:
            message = f"the response has no 'Action:', and is not calls alone: {error}"
            raise ActionParseError(ParseErrorKind.NO_ACTION, message) from error
    # The Python parser takes the last label. But a label may also be typed (`type(content='Action: none')`), and then
    # nothing but calls follows the first one that starts a line. Where a text has no clear end, a later label may be a
    # part of it, unless each label has calls of its own. A fixed number of tries keeps the parser linear.
    on_a_line = [label for label in labels if text[label.start() - 1 : label.start()] in ("", "\n")] or labels[-1:]
    errors = dict[re.Match[str], ActionParseError]()
    for label in dict.fromkeys((on_a_line[0], on_a_line[-1], labels[-1], labels[0])):
        no_end = any(isinstance(error, TypedTextError) for error in errors.values())
        if no_end and not (label in on_a_line and _are_calls(text, on_a_line, table)):
            break
        try:
            found = _actions(text[label.end() :], table)
        except ActionParseError as error:
            errors[label] = error
        else:
            return ParsedResponse(_thought(text[: label.start()]), found)
    raise errors.get(on_a_line[-1]) or errors[on_a_line[0]]


def _are_calls(text: str, labels: Sequence[re.Match[str]], table: "Table") -> bool:
    """Return whether calls, and nothing else, stand between each label and the next one."""
    try:
        for label, following in pairwise(labels):
            _actions(text[label.end() : following.start()], table)
    except ActionParseError:
        return False
    return True


def _thought(before: str) -> str:
    """Return the thought of a response, which may hold any label, so that its own is looked for first."""
    for label in _THOUGHTS:
        if match := label.search(before):
            return before[match.end() :].strip()
    return ""


def _actions(text: str, table: "Table") -> tuple[Action, ...]:
    calls = read_calls(text, table.syntax)
    if not calls:
        refuse(ParseErrorKind.NO_ACTION, "nothing follows 'Action:'")
    return tuple(map(table.action, calls))


class _Arguments(NamedTuple):
    """The arguments of one call, by their canonical names."""

    action: str
    values: Mapping[str, Value]

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            refuse(ParseErrorKind.MISSING_ARGUMENT, f"{self.action} needs {name}='…'")
        if not value.quoted:
            refuse(ParseErrorKind.BAD_ARGUMENT, f"{self.action}: {name} must be a quoted string")
        return value.text

    def filled(self, name: str) -> str:
        text = self.text(name)
        if not text:
            refuse(ParseErrorKind.MISSING_ARGUMENT, f"{self.action}: {name} is empty")
        return text

    def has_point(self, name: str) -> bool:
        return name in self.values and bool(self.values[name].text.strip())

    def point(self, name: str) -> tuple[float, float]:
        if not self.has_point(name):
            refuse(ParseErrorKind.MISSING_ARGUMENT, f"{self.action} needs {name}='(x,y)'")
        return read_point(self.values[name].text)

    def start(self) -> tuple[float | None, float | None]:
        """Return the place where an action begins; none where the pointer is."""
        here = "start_box" in self.values and self.values["start_box"].text.strip() == POINTER
        return (None, None) if here else self.point("start_box")


def _clicked(arguments: _Arguments, *, button: actions.Button = "left", count: Literal[1, 2] = 1) -> Action:
    return actions.Click(*arguments.start(), button, count)


def _scroll(arguments: _Arguments) -> Action:
    direction = _DIRECTIONS.get(arguments.filled("direction").strip().lower())
    if direction is None:
        said = arguments.text("direction")[:40]
        refuse(ParseErrorKind.BAD_ARGUMENT, f"unknown direction {said!r}; known are {', '.join(_DIRECTIONS)}")
    return actions.Scroll(direction, *(arguments.point("start_box") if arguments.has_point("start_box") else ()))


def _hotkey(arguments: _Arguments) -> Action:
    text = arguments.filled("key")
    check_length(text, "hotkey", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    return read_hotkey(split_keys(text))


def _keyed(kind: Callable[[str], Action], arguments: _Arguments) -> Action:
    text = arguments.filled("key")
    check_length(text, "key", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    names = split_keys(text)
    return kind(read_key(names[0] if len(names) == 1 else text.strip()))


def _finished(arguments: _Arguments) -> Action:
    return actions.Finished(arguments.text("content") if "content" in arguments.values else "")


def _called(arguments: _Arguments) -> Action:
    function = arguments.values.get("function")
    if function is None or not function.quoted or not function.text:
        refuse(ParseErrorKind.BAD_CALL, "call needs function='…'")
    given = {name: _scalar(name, value) for name, value in arguments.values.items() if name != "function"}
    return actions.Call(function.text, given)


def _scalar(name: str, value: Value) -> Scalar:
    if value.quoted:
        return value.text
    if value.text in _TRUTHS:
        return _TRUTHS[value.text]
    if _INTEGER.fullmatch(value.text):
        return int(value.text)
    if _FLOAT.fullmatch(value.text) and math.isfinite(number := float(value.text)):
        return number
    problem = f"must be a quoted string, a number, true or false, got {value.text[:40]!r}"
    refuse(ParseErrorKind.BAD_CALL, f"{name[:40]} {problem}")


_TRUTHS = {"true": True, "True": True, "false": False, "False": False}
_INTEGER = re.compile(rf"-?(?:0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")


class _Rule(NamedTuple):
    """The way to build one action, and the arguments that it takes; None: any, by the names that they are given."""

    build: Callable[[_Arguments], Action]
    arguments: tuple[str, ...] | None = ()


class Table:
    """The actions that a grammar reads. A rule stands under all the names of its action, with spaces between."""

    def __init__(self, rules: Mapping[str, _Rule]) -> None:
        self._rules = {name: rule for names, rule in rules.items() for name in names.split()}
        self.syntax = Grammar(
            actions=self._rules.keys(),
            arguments=_ARGUMENT_ALIASES.keys() | {name for rule in rules.values() for name in rule.arguments or ()},
            texts={"content", "text"},
            strict={name for name, rule in self._rules.items() if rule.arguments is None},
        )

    def action(self, call: Call) -> Action:
        """Return the action that a call means."""
        rule = self._rules.get(call.name)
        if rule is None:
            problem = f"unknown action {call.name[:40]!r}; known are {', '.join(self._rules)}"
            refuse(ParseErrorKind.UNKNOWN_ACTION, problem)
        if rule.arguments is None:
            return rule.build(_Arguments(call.name, call.arguments))
        arguments: dict[str, Value] = {}
        extra: dict[str, str] = {}
        for written, value in call.arguments.items():
            name = _ARGUMENT_ALIASES.get(written, written)
            if name in rule.arguments and name not in arguments:
                arguments[name] = value
            elif name in rule.arguments:
                refuse(ParseErrorKind.BAD_ARGUMENT, f"{call.name} has {written[:40]!r} twice")
            elif name == "key" or name not in self.syntax.arguments:
                extra[written] = value.text  # but `type(content='…', start_box='…')` is a known form
        action = rule.build(_Arguments(call.name, arguments))
        check_extra(call.name, extra, incomplete="start_box" in rule.arguments and "start_box" not in arguments)
        return action


_DIRECTIONS: Mapping[str, Direction] = {"up": "up", "down": "down", "left": "left", "right": "right"}
_ARGUMENT_ALIASES = {
    "point": "start_box",
    "start_point": "start_box",
    "end_point": "end_box",
    "start": "start_box",  # as UI-TARS-desktop writes actions itself
    "end": "end_box",
    "hotkey": "key",
    "press": "key",
    "text": "content",  # tests of the desktop's parser: `type(text='Hello', start_box='(300,400)')`
}
_POINTED, _BETWEEN = ("start_box",), ("start_box", "end_box")
_DESKTOP: Mapping[str, _Rule] = {
    "click left_single left_click": _Rule(_clicked, _POINTED),
    "left_double double_click": _Rule(partial(_clicked, count=2), _POINTED),
    "right_single right_click": _Rule(partial(_clicked, button="right"), _POINTED),
    "middle_click": _Rule(partial(_clicked, button="middle"), _POINTED),
    "hover mouse_move move_to": _Rule(lambda given: actions.Hover(*given.point("start_box")), _POINTED),
    "drag select left_click_drag": _Rule(
        lambda given: actions.Drag(*given.start(), *given.point("end_box")), _BETWEEN
    ),
    "scroll": _Rule(_scroll, ("start_box", "direction")),
    "hotkey": _Rule(_hotkey, ("key",)),
    "press": _Rule(partial(_keyed, actions.Press), ("key",)),
    "keydown": _Rule(partial(_keyed, actions.KeyDown), ("key",)),
    "keyup release": _Rule(partial(_keyed, actions.KeyUp), ("key",)),
    "type": _Rule(lambda given: actions.TypeText(given.text("content")), ("content",)),
    "wait": _Rule(lambda _: actions.Wait()),
    "call": _Rule(_called, None),
    "finished": _Rule(_finished, ("content",)),
    "call_user": _Rule(lambda _: actions.CallUser()),
    "error_env": _Rule(lambda _: actions.Fail()),
}
"""The first name is that of records; others are those of UI-TARS-desktop, of the Python parser (`release`), and of
`GUIActionType` in ui-tars 0.5.1 (`move_to`)."""

_PHONE: Mapping[str, _Rule] = {
    "long_press": _Rule(lambda given: phone.LongPress(*given.point("start_box")), _POINTED),
    "swipe": _Rule(lambda given: phone.Swipe(*given.point("start_box"), *given.point("end_box")), _BETWEEN),
    "open_app": _Rule(lambda given: phone.OpenApp(given.text("app_name")), ("app_name",)),
    "press_back": _Rule(lambda _: phone.Back()),
    "press_home": _Rule(lambda _: phone.Home()),
}
"""Of the prompt for phones (`MOBILE_USE_DOUBAO`) and of UI-TARS-desktop's operator by adb, which has `swipe`."""

DESKTOP, PHONE = Table(_DESKTOP), Table({**_DESKTOP, **_PHONE})
RECORDED = PHONE
"""The table by which records are read: it has every action."""
