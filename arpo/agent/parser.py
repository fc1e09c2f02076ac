"""Response to actions: UI-TARS's grammar whole, in linear time, without evaluating anything that a model wrote.

    Thought: …                                      optional, as is any other text before the action
    Action: click(start_box='(966,546)')            more actions on further lines

and, beside it, `call(function='mousepad.open', path='~/note.txt')`, which calls a function of the desktop.

An answer is what the model's authors read, `codes/ui_tars/action_parser.py` of bytedance/UI-TARS ("the Python parser"
below) and the parsers of UI-TARS-desktop with their tests ("the desktop's"), and what their prompts and
`data/training_example.json` contain. Where these would type half of a text, it is refused (`typed_text.py`).

Coordinates are pixels of the image that the model saw; `CoordinateFrame` takes them to the screen.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from arpo.agent import actions
from arpo.agent.actions import INTEGER_DIGITS, Action, Direction, Scalar
from arpo.agent.boxes import read_point
from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.extra import check_extra
from arpo.agent.keys import canonical_key, split_keys
from arpo.agent.syntax import Call, Grammar, Value, read_calls
from arpo.agent.typed_text import TypedTextError
from arpo.errors import ActionParseError

MAX_CHARACTERS = 1_000_000
"""A response of 8,192 tokens is far below; above, nothing is read."""

MAX_HOTKEY_CHARACTERS = 100

POINTER = "pointer"
"""The place where the pointer is: our own word, for actions of other grammars, which need not name a place."""

THOUGHT_ENDS = "</think>"
"""What a model that thinks writes behind its thought, which may draft calls and name tags."""

_LABEL = re.compile("Action[:：]")
"""The full-width colon is in the tests of the desktop's parser."""

_THOUGHT = re.compile("Thought[:：]")
_REFLECTION = re.compile("Reflection[:：]")
_SUMMARY = re.compile("Action_Summary[:：]")

_ENDINGS = ("</Output>", "</computer_env>", "[EOS]", "```")
"""What may close a response: the desktop's parser knows the first two, the Python parser the third, and the last one
is the fence in which the prompt shows the format."""


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The content of a response, part by part."""

    thought: str
    """What follows `Thought:`, or else `Action_Summary:`, as in the Python parser, or else `Reflection:`."""
    actions: tuple[Action, ...]
    """At least one; coordinates in model pixels."""


def parse_response(text: str, *, max_actions: int | None = None) -> ParsedResponse:
    """Return the thought and the actions of a response.

    Without a label the response must be calls and nothing else, as for the desktop's parser: prose is no action.

    Args:
        text: The response.
        max_actions: More actions than these are refused as `too_long`; None: any number is read.

    Raises:
        ActionParseError: With a `ParseErrorKind` as its kind.
    """
    check_length(text, "response", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    if not text.strip():
        raise ActionParseError(ParseErrorKind.EMPTY, "the response is empty")
    head, _, rest = text.rpartition(THOUGHT_ENDS)
    if not head or not _LABEL.search(rest):  # else it stands in a text that is typed
        head, rest = "", text
    response = _read(_without_ending(rest))
    if head and not response.thought:
        response = replace(response, thought=head.strip())
    check_number_of_actions(response.actions, max_actions)
    return response


def parse_actions(text: str) -> tuple[Action, ...]:
    """Return the actions of calls such as `click(start_box='(10,20)')`, one a line: what a step of a trajectory holds.

    Raises:
        ActionParseError: With a `ParseErrorKind` as its kind.
    """
    check_length(text, "action", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    return _actions(text)


def parse_action(text: str) -> Action:
    """Return the action of one call such as `click(start_box='(10,20)')`.

    Raises:
        ActionParseError: With a `ParseErrorKind` as its kind.
    """
    found = parse_actions(text)
    if len(found) > 1:
        raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"expected one action, got {len(found)}")
    return found[0]


def check_number_of_actions(found: Sequence[Action], max_actions: int | None) -> None:
    """Check that a response has no more actions than it may have.

    Raises:
        ActionParseError: `too_long`, when it has more.
    """
    if max_actions is not None and len(found) > max_actions:
        message = f"the response has {len(found)} actions, more than max_actions={max_actions}"
        raise ActionParseError(ParseErrorKind.TOO_LONG, message)


def check_length(text: str, what: str, limit: int, kind: ParseErrorKind) -> None:
    """Check that a text has no more characters than it may have.

    Raises:
        ActionParseError: Of this kind, when it has more.
    """
    if len(text) > limit:
        raise ActionParseError(kind, f"the {what} has {len(text)} characters, more than {limit}")


def _without_ending(text: str) -> str:
    text = text.strip()
    for ending in _ENDINGS:
        text = text.removesuffix(ending).rstrip()
    return text


def _read(text: str) -> ParsedResponse:
    labels = list(_LABEL.finditer(text))
    if not labels:
        return _unlabelled(text)
    # The Python parser takes the last label. But a label may also be typed (`type(content='Action: none')`), and then
    # nothing but calls follows the first one that starts a line. Where a text has no clear end, a later label may be a
    # part of it, unless each label has calls of its own. A fixed number of tries keeps the parser linear.
    on_a_line = [label for label in labels if text[label.start() - 1 : label.start()] in ("", "\n")] or labels[-1:]
    errors = dict[re.Match[str], ActionParseError]()
    for label in dict.fromkeys((on_a_line[0], on_a_line[-1], labels[-1], labels[0])):
        no_end = any(isinstance(error, TypedTextError) for error in errors.values())
        if no_end and not (label in on_a_line and _are_calls(text, on_a_line)):
            break
        try:
            found = _actions(text[label.end() :])
        except ActionParseError as error:
            errors[label] = error
        else:
            return _with_thought(text[: label.start()], found)
    raise errors.get(on_a_line[-1]) or errors[on_a_line[0]]


def _are_calls(text: str, labels: Sequence[re.Match[str]]) -> bool:
    """Return whether calls, and nothing else, stand between each label and the next one."""
    try:
        for label, following in pairwise(labels):
            _actions(text[label.end() : following.start()])
    except ActionParseError:
        return False
    return True


def _unlabelled(text: str) -> ParsedResponse:
    try:
        return ParsedResponse("", _actions(text))
    except ActionParseError as error:
        message = f"the response has no 'Action:', and is not calls alone: {error}"
        raise ActionParseError(ParseErrorKind.NO_ACTION, message) from error


def _with_thought(before: str, found: tuple[Action, ...]) -> ParsedResponse:
    """Return the response with its thought, which may hold any label, so that its own is looked for first."""
    for label in (_THOUGHT, _SUMMARY, _REFLECTION):
        if match := label.search(before):
            return ParsedResponse(before[match.end() :].strip(), found)
    return ParsedResponse("", found)


def _actions(text: str) -> tuple[Action, ...]:
    calls = read_calls(text, _GRAMMAR)
    if not calls:
        raise ActionParseError(ParseErrorKind.NO_ACTION, "nothing follows 'Action:'")
    return tuple(_action(call) for call in calls)


def _action(call: Call) -> Action:
    rule = _RULES.get(call.name)
    if rule is None:
        message = f"unknown action {call.name[:40]!r}; known are {', '.join(_RULES)}"
        raise ActionParseError(ParseErrorKind.UNKNOWN_ACTION, message)
    if rule.arguments is None:
        return rule.build(_Arguments(call.name, call.arguments))
    arguments: dict[str, Value] = {}
    extra: dict[str, str] = {}
    for written, value in call.arguments.items():
        name = _ARGUMENT_ALIASES.get(written, written)
        if name in rule.arguments and name not in arguments:
            arguments[name] = value
        elif name in rule.arguments:
            raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"{call.name} has {written[:40]!r} twice")
        elif name == "key" or name not in _GRAMMAR.arguments:  # `type(content='…', start_box='…')` is a known form
            extra[written] = value.text
    action = rule.build(_Arguments(call.name, arguments))
    check_extra(call.name, extra, incomplete="start_box" in rule.arguments and "start_box" not in arguments)
    return action


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of one call, by their canonical names."""

    action: str
    values: Mapping[str, Value]

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            raise ActionParseError(ParseErrorKind.MISSING_ARGUMENT, f"{self.action} needs {name}='…'")
        if not value.quoted:
            raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"{self.action}: {name} must be a quoted string")
        return value.text

    def filled(self, name: str) -> str:
        text = self.text(name)
        if not text:
            raise ActionParseError(ParseErrorKind.MISSING_ARGUMENT, f"{self.action}: {name} is empty")
        return text

    def has_point(self, name: str) -> bool:
        return name in self.values and bool(self.values[name].text.strip())

    def point(self, name: str) -> tuple[float, float]:
        if not self.has_point(name):
            raise ActionParseError(ParseErrorKind.MISSING_ARGUMENT, f"{self.action} needs {name}='(x,y)'")
        return read_point(self.values[name].text)

    def start(self) -> tuple[float | None, float | None]:
        """Return the place where an action begins; none where the pointer is."""
        here = "start_box" in self.values and self.values["start_box"].text.strip() == POINTER
        return (None, None) if here else self.point("start_box")


def _pointed(kind: Callable[[float, float], Action], arguments: _Arguments) -> Action:
    return kind(*arguments.point("start_box"))


def _clicked(kind: Callable[[float | None, float | None], Action], arguments: _Arguments) -> Action:
    return kind(*arguments.start())


def _drag(arguments: _Arguments) -> Action:
    return actions.Drag(*arguments.start(), *arguments.point("end_box"))


def _scroll(arguments: _Arguments) -> Action:
    direction = _DIRECTIONS.get(arguments.filled("direction").strip().lower())
    if direction is None:
        message = f"unknown direction {arguments.text('direction')[:40]!r}; known are {', '.join(_DIRECTIONS)}"
        raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, message)
    if not arguments.has_point("start_box"):
        return actions.Scroll(direction)
    return actions.Scroll(direction, *arguments.point("start_box"))


def _hotkey(arguments: _Arguments) -> Action:
    text = arguments.filled("key")
    check_length(text, "hotkey", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    keys = [_known_key(name) for name in split_keys(text)]
    if len(keys) > 1:  # "Ctrl C" names the key C: nobody means ctrl+shift+c by it
        keys = [key.lower() for key in keys]
    return actions.Hotkey(tuple(keys))


def _known_key(name: str) -> str:
    key = canonical_key(name)
    if key is None:
        raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"unknown key {name[:40]!r}")
    return key


def _keyed(kind: Callable[[str], Action], arguments: _Arguments) -> Action:
    text = arguments.filled("key")
    check_length(text, "key", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    names = split_keys(text)
    return kind(_known_key(names[0] if len(names) == 1 else text.strip()))


def _finished(arguments: _Arguments) -> Action:
    return actions.Finished(arguments.text("content")) if "content" in arguments.values else actions.Finished()


def _called(arguments: _Arguments) -> Action:
    function = arguments.values.get("function")
    if function is None or not function.quoted or not function.text:
        raise ActionParseError(ParseErrorKind.BAD_CALL, "call needs function='…'")
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
    message = f"{name[:40]} must be a quoted string, a number, true or false, got {value.text[:40]!r}"
    raise ActionParseError(ParseErrorKind.BAD_CALL, message)


_TRUTHS = {"true": True, "True": True, "false": False, "False": False}
_INTEGER = re.compile(rf"-?(?:0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class _Rule:
    """The way to build one action, and the arguments that it takes; None: any, by the names that they are given."""

    build: Callable[[_Arguments], Action]
    arguments: tuple[str, ...] | None = ()


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

_click = _Rule(partial(_clicked, actions.Click), ("start_box",))
_double_click = _Rule(partial(_clicked, actions.DoubleClick), ("start_box",))
_right_click = _Rule(partial(_clicked, actions.RightClick), ("start_box",))
_middle_click = _Rule(partial(_clicked, actions.MiddleClick), ("start_box",))
_hover = _Rule(partial(_pointed, actions.Hover), ("start_box",))
_dragged = _Rule(_drag, ("start_box", "end_box"))
_key_up = _Rule(partial(_keyed, actions.KeyUp), ("key",))

_RULES: Mapping[str, _Rule] = {
    "click": _click,
    "left_single": _click,
    "left_click": _click,  # here and below: the names under which the desktop performs them too
    "left_double": _double_click,
    "double_click": _double_click,
    "right_single": _right_click,
    "right_click": _right_click,
    "middle_click": _middle_click,
    "hover": _hover,
    "mouse_move": _hover,
    "move_to": _hover,  # ui-tars 0.5.1, `GUIActionType`
    "drag": _dragged,
    "select": _dragged,
    "left_click_drag": _dragged,
    "scroll": _Rule(_scroll, ("start_box", "direction")),
    "hotkey": _Rule(_hotkey, ("key",)),
    "press": _Rule(partial(_keyed, actions.Press), ("key",)),
    "keydown": _Rule(partial(_keyed, actions.KeyDown), ("key",)),
    "keyup": _key_up,
    "release": _key_up,  # Python parser: `action_type in ["release", "keyup"]`
    "type": _Rule(lambda arguments: actions.TypeText(arguments.text("content")), ("content",)),
    "wait": _Rule(lambda _: actions.Wait()),
    "call": _Rule(_called, None),
    "finished": _Rule(_finished, ("content",)),
    "call_user": _Rule(lambda _: actions.CallUser()),
    "error_env": _Rule(lambda _: actions.Fail()),
}

_GRAMMAR = Grammar(
    actions=_RULES.keys(),
    arguments={argument for rule in _RULES.values() for argument in rule.arguments or ()} | _ARGUMENT_ALIASES.keys(),
    texts={"content", "text"},
    strict={name for name, rule in _RULES.items() if rule.arguments is None},
)
