"""Response to actions: UI-TARS's grammar whole, in linear time, without evaluating anything that a model wrote.

    Thought: …                                      optional, as is any other text before the action
    Action: click(start_box='(966,546)')            mandatory; more actions on further lines

Coordinates are pixels of the image that the model saw; `CoordinateFrame` takes them to the screen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from arpo.agent import actions
from arpo.agent.actions import Action, Direction
from arpo.agent.boxes import read_point
from arpo.agent.keys import canonical_key
from arpo.agent.syntax import Call, ParseErrorKind, Value, read_calls
from arpo.errors import ActionParseError

MAX_CHARACTERS = 1_000_000
"""A response of 8,192 tokens is far below; above, nothing is read."""

MAX_HOTKEY_CHARACTERS = 100

_LABEL = "Action:"


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """The content of a response, part by part."""

    thought: str
    actions: tuple[Action, ...]
    """At least one; coordinates in model pixels."""


def parse_response(text: str) -> ParsedResponse:
    """Return the thought and the actions of a response.

    Raises:
        ActionParseError: With a `ParseErrorKind` as its kind.
    """
    _check_length(text, "response", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    if not text.strip():
        raise ActionParseError(ParseErrorKind.EMPTY, "the response is empty")
    first_error: ActionParseError | None = None
    for position in _labels(text):
        try:
            found = _actions(text[position + len(_LABEL) :])
        except ActionParseError as error:
            first_error = first_error or error
        else:
            # a thought may hold any text, so its label is looked for last
            return ParsedResponse(text[:position].partition("Thought:")[2].strip(), found)
    if first_error is None:
        raise ActionParseError(ParseErrorKind.NO_ACTION, f"the response has no {_LABEL!r}")
    raise first_error


def parse_action(text: str) -> Action:
    """Return the action of one call such as `click(start_box='(10,20)')`.

    Raises:
        ActionParseError: With a `ParseErrorKind` as its kind.
    """
    _check_length(text, "action", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    found = _actions(text)
    if len(found) > 1:
        raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"expected one action, got {len(found)}")
    return found[0]


def _check_length(text: str, what: str, limit: int, kind: ParseErrorKind) -> None:
    if len(text) > limit:
        raise ActionParseError(kind, f"the {what} has {len(text)} characters, more than {limit}")


def _labels(text: str) -> list[int]:
    """Return where the actions may start, the most likely place first.

    That is after the last label. But a label may also be typed (`type(content='Action: none')`), so the last one that
    starts a line goes first, and the first one of all last: a fixed number of tries keeps the parser linear.
    """
    last = text.rfind(_LABEL)
    last_on_a_line = text.rfind("\n" + _LABEL) + 1
    if last_on_a_line == 0 and not text.startswith(_LABEL):
        last_on_a_line = last
    return [place for place in dict.fromkeys((last_on_a_line, last, text.find(_LABEL))) if place >= 0]


def _actions(text: str) -> tuple[Action, ...]:
    calls = read_calls(text, _RULES.keys())
    if not calls:
        raise ActionParseError(ParseErrorKind.NO_ACTION, f"nothing follows {_LABEL!r}")
    return tuple(_action(call) for call in calls)


def _action(call: Call) -> Action:
    rule = _RULES.get(call.name)
    if rule is None:
        message = f"unknown action {call.name[:40]!r}; known are {', '.join(_RULES)}"
        raise ActionParseError(ParseErrorKind.UNKNOWN_ACTION, message)
    arguments: dict[str, Value] = {}
    for written, value in call.arguments.items():
        name = _ARGUMENT_ALIASES.get(written, written)
        if name not in rule.arguments or name in arguments:
            message = f"{call.name} has no argument {written[:40]!r}, or has it twice"
            raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, message)
        arguments[name] = value
    return rule.build(_Arguments(call.name, arguments))


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


def _pointed(kind: Callable[[float, float], Action], arguments: _Arguments) -> Action:
    return kind(*arguments.point("start_box"))


def _drag(arguments: _Arguments) -> Action:
    return actions.Drag(*arguments.point("start_box"), *arguments.point("end_box"))


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
    _check_length(text, "hotkey", MAX_HOTKEY_CHARACTERS, ParseErrorKind.BAD_ARGUMENT)
    words = text.split() or [text[0]]
    # "ctrl + z": a joint between two words is no key; at either end it is one.
    words = [word for i, word in enumerate(words) if word not in ("+", "-") or i in (0, len(words) - 1)]
    keys = [key for word in words for key in _joined_keys(word)]
    if len(keys) > 1:  # "Ctrl C" names the key C: nobody means ctrl+shift+c by it
        keys = [key.lower() for key in keys]
    return actions.Hotkey(tuple(keys))


def _joined_keys(word: str) -> list[str]:
    """Return the keys of `z`, `ctrl+z`, `ctrl-z`, `ctrl++` and `ctrl+-`."""
    key = canonical_key(word)
    if key is not None:
        return [key]
    joints = [place for place in (word.find("+", 1), word.find("-", 1)) if place > 0]
    if not joints:
        return [_known_key(word)]
    joint = min(joints)
    # Nothing after the joint: it is itself the key, as in "ctrl+" for zooming in.
    return [_known_key(word[:joint]), *_joined_keys(word[joint + 1 :] or word[joint])]


def _known_key(name: str) -> str:
    key = canonical_key(name)
    if key is None:
        raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"unknown key {name[:40]!r}")
    return key


def _keyed(kind: Callable[[str], Action], arguments: _Arguments) -> Action:
    text = arguments.filled("key")
    return kind(_known_key(text if len(text) == 1 else text.strip()))


def _finished(arguments: _Arguments) -> Action:
    return actions.Finished(arguments.text("content")) if "content" in arguments.values else actions.Finished()


@dataclass(frozen=True, slots=True)
class _Rule:
    """The way to build one action, and the arguments that it takes."""

    build: Callable[[_Arguments], Action]
    arguments: tuple[str, ...] = ()


_DIRECTIONS: Mapping[str, Direction] = {"up": "up", "down": "down", "left": "left", "right": "right"}

_ARGUMENT_ALIASES = {
    "point": "start_box",
    "start_point": "start_box",
    "end_point": "end_box",
    "hotkey": "key",
    "press": "key",
}

_RULES: Mapping[str, _Rule] = {
    "click": _Rule(partial(_pointed, actions.Click), ("start_box",)),
    "left_single": _Rule(partial(_pointed, actions.Click), ("start_box",)),
    "left_double": _Rule(partial(_pointed, actions.DoubleClick), ("start_box",)),
    "right_single": _Rule(partial(_pointed, actions.RightClick), ("start_box",)),
    "hover": _Rule(partial(_pointed, actions.Hover), ("start_box",)),
    "drag": _Rule(_drag, ("start_box", "end_box")),
    "select": _Rule(_drag, ("start_box", "end_box")),
    "scroll": _Rule(_scroll, ("start_box", "direction")),
    "hotkey": _Rule(_hotkey, ("key",)),
    "press": _Rule(partial(_keyed, actions.Press), ("key",)),
    "keydown": _Rule(partial(_keyed, actions.KeyDown), ("key",)),
    "keyup": _Rule(partial(_keyed, actions.KeyUp), ("key",)),
    "type": _Rule(lambda arguments: actions.TypeText(arguments.text("content")), ("content",)),
    "wait": _Rule(lambda _: actions.Wait()),
    "finished": _Rule(_finished, ("content",)),
    "call_user": _Rule(lambda _: actions.CallUser()),
    "error_env": _Rule(lambda _: actions.Fail()),
}
