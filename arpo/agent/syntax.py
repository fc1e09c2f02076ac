"""Text to calls: the syntax of UI-TARS's actions, read in one pass. What a call means is `parser.py`'s part."""

import re
from collections.abc import Mapping, Set
from enum import StrEnum, auto
from typing import NamedTuple, NoReturn

from arpo.errors import ActionParseError


class ParseErrorKind(StrEnum):
    """The reasons why a response is not an action. A closed set: each kind is one counter in the metrics."""

    EMPTY = auto()
    """The response holds nothing but white space."""
    TOO_LONG = auto()
    """The response is longer than any model is allowed to write."""
    NO_ACTION = auto()
    """There is no `Action:`, or nothing after it."""
    BAD_SYNTAX = auto()
    """The text after `Action:` is not a list of calls with named arguments, one a line."""
    UNKNOWN_ACTION = auto()
    """A call has a name that is not in the action space."""
    MISSING_ARGUMENT = auto()
    """A call lacks an argument, or the argument is empty."""
    BAD_ARGUMENT = auto()
    """A call has an argument too many, or one with a value that is not allowed: a key, a direction."""
    BAD_BOX = auto()
    """A position is not two or four plain numbers of a sensible size."""


class Value(NamedTuple):
    """The value of an argument, without its quotes and with its escapes resolved."""

    text: str
    quoted: bool


class Call(NamedTuple):
    """A name with named arguments."""

    name: str
    arguments: Mapping[str, Value]


ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
"""The characters that may follow a backslash in a string. Before any other it is itself, as in `C:\\Users`."""

_BRACKETS = {"(": ")", "[": "]"}
_OPENING = re.compile(r"(\w+)\(\s*[^\W\d]\w*\s*=\s*\Z")

# Possessive quantifiers, so that nothing is read twice.
_SPACE = re.compile(r"\s*+")
_SPACE_ON_A_LINE = re.compile(r"[^\S\n]*+")
_SPACE_AND_COMMENTS = re.compile(r"\s*+(?:#[^\n]*+\s*+)*+")
_NAME = re.compile(r"\w*+")
_STRING_PART = re.compile(r"""\\.?|[^\\'"]++|['"]""", re.DOTALL)
_GOES_ON = re.compile(r"\s*+(?:,\s*+(?:\)|\w++\s*+=)|\)[^\S\n]*+(?:[\n#]|\Z))")
"""What follows a string in a call: `, name=` or `)` and no more on the line."""
TAGS = {"<|box_start|>": "<|box_end|>", "<point>": "</point>", "<bbox>": "</bbox>"}
"""Tags around a position, with what closes them."""


def read_calls(text: str, names: Set[str]) -> list[Call]:
    """Return the calls in a text, one a line or separated by blank lines, in linear time.

    Args:
        text: What follows `Action:`. A comment (`# …`, as in the prompt) may follow a call.
        names: The known actions; they tell a forgotten closing quote from a quote inside a string.

    Raises:
        ActionParseError: `bad_syntax` or, for a repeated argument, `bad_argument`.
    """
    return _Reader(text, names).calls()


class _Reader:
    """A cursor over the text; every method moves it forward, so that the whole is linear."""

    def __init__(self, text: str, names: Set[str]) -> None:
        self._text = text
        self._names = names
        self._at = 0

    def calls(self) -> list[Call]:
        calls = []
        self._read(_SPACE_AND_COMMENTS)
        while self._at < len(self._text):
            calls.append(self._call())
            self._read(_SPACE_ON_A_LINE)
            if self._text[self._at : self._at + 1] not in ("", "\n", "#"):
                self._fail("expected the end of the line after an action")
            self._read(_SPACE_AND_COMMENTS)
        return calls

    def _call(self) -> Call:
        name = self._name()
        self._expect("(")
        arguments: dict[str, Value] = {}
        while self._peek() != ")":
            argument = self._name()
            self._expect("=")
            if argument in arguments:
                raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"{name} has the argument {argument!r} twice")
            arguments[argument] = self._value()
            if self._peek() != ",":
                break
            self._at += 1
        self._expect(")")
        return Call(name, arguments)

    def _name(self) -> str:
        self._read(_SPACE)
        name = self._read(_NAME)
        if not name:
            self._fail("expected a name")
        return name

    def _value(self) -> Value:
        opening = self._peek()
        if opening in ("'", '"'):
            return Value(self._string(), quoted=True)
        if opening in _BRACKETS:
            return Value(self._bracketed(), quoted=False)
        for tag, closing in TAGS.items():
            if self._text.startswith(tag, self._at):
                return Value(self._until(closing), quoted=False)
        self._fail("expected a quoted string or a position")

    def _string(self) -> str:
        """Read a quoted string.

        Models forget to escape (`'it's'`, `'print('hi')'`), so a quote ends the string only where the call can go on
        after it. That forgives nothing in a well-formed call, whose strings are always followed by its next part.
        """
        start, quote, parts = self._at + 1, self._text[self._at], list[str]()
        for found in _STRING_PART.finditer(self._text, start):
            part = found[0]
            if part == quote:
                if _GOES_ON.match(self._text, found.end()):
                    self._at = found.end()
                    return "".join(parts)
                if self._opens_another_call(start, found.start()):
                    break
            parts.append(ESCAPES.get(part[1:], part) if part[0] == "\\" else part)
        self._fail(f"the string that starts with {self._text[start - 1 : start + 20]!r} has no end")

    def _opens_another_call(self, start: int, at: int) -> bool:
        """Tell whether the quote at a position opens the first argument of a known action: `click(start_box='`."""
        opening = _OPENING.search(self._text[max(start, at - 60) : at])
        return opening is not None and opening[1] in self._names

    def _bracketed(self) -> str:
        """Read a position in brackets, unquoted."""
        start, closers = self._at, list[str]()
        for at in range(start, len(self._text)):
            char = self._text[at]
            if char in _BRACKETS:
                closers.append(_BRACKETS[char])
            elif closers[-1] == char:
                closers.pop()
            if not closers:
                self._at = at + 1
                return self._text[start : self._at]
        self._fail("a bracket is not closed")

    def _until(self, closing: str) -> str:
        start, end = self._at, self._text.find(closing, self._at)
        if end < 0:
            self._fail(f"{closing!r} is missing")
        self._at = end + len(closing)
        return self._text[start : self._at]

    def _expect(self, char: str) -> None:
        if self._peek() != char:
            self._fail(f"expected {char!r}")
        self._at += 1

    def _peek(self) -> str:
        """Skip space and return the next character, or an empty string at the end."""
        self._read(_SPACE)
        return self._text[self._at : self._at + 1]

    def _read(self, pattern: re.Pattern[str]) -> str:
        """Move behind what a pattern matches, if only an empty string, and return it."""
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return match[0]

    def _fail(self, message: str) -> NoReturn:
        found = self._text[self._at : self._at + 20] or "the end of the response"
        raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"{message}, at {found!r}")
