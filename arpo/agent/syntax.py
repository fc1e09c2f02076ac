"""Text to calls: the syntax of UI-TARS's actions, read in one pass. What a call means is `parser.py`'s part."""

import re
from collections.abc import Mapping, Set
from typing import NamedTuple, NoReturn

from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.typed_text import SPACE_AND_COMMENTS, TypedTextError, check_comments, end_of, find_end
from arpo.errors import ActionParseError


class Value(NamedTuple):
    """The value of an argument, without its quotes and with its escapes resolved."""

    text: str
    quoted: bool


class Call(NamedTuple):
    """A name with named arguments."""

    name: str
    arguments: Mapping[str, Value]


class Grammar(NamedTuple):
    """The names that tell one part of a response from another where quotes and brackets do not."""

    actions: Set[str]
    arguments: Set[str]
    """The arguments that mean something; the value of any other may be a bare word or number."""
    texts: Set[str]
    """Those of them that hold text to type, in which quotes may be bare."""
    strict: Set[str]
    """The actions of our own, which no author's model writes in ways of its own: every argument has a name, a quote in
    a string is escaped, and the last bracket is there, or else the response may have been cut."""


ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
"""The characters that may follow a backslash in a string. Before any other it is itself, as in `C:\\Users`."""

TAGS = {"<|box_start|>": "<|box_end|>", "<point>": "</point>", "<bbox>": "</bbox>"}
"""Tags around a position, with what closes them."""

_BRACKETS = {"(": ")", "[": "]"}
_OPENING = re.compile(r"(\w+)\(\s*[^\W\d]\w*\s*=\Z")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

# Possessive quantifiers, so that nothing is read twice.
_SPACE = re.compile(r"\s*+")
_SPACE_ON_A_LINE = re.compile(r"[^\S\n]*+")
_NAME = re.compile(r"\w*+")
_NUMBER = re.compile(r"\d++(?:\.\d++)?+s?+(?=\s*+(?:[,)]|\Z))")
_BARE = re.compile(r"[^\s,()'\"#]++")
_QUOTE_OR_ESCAPE = re.compile(r"""\\.?|['"]""", re.DOTALL)
_GOES_ON_STRICTLY = re.compile(r"\s*+[,)]")
_GOES_ON = re.compile(r"\s*+(?:,\s*+(?:\)|\Z|\w++\s*+=)|\)[^\S\n]*+(?:[\n#]|\Z))|[^\S\n]*+(?:[\n#]|\Z)")
"""What follows a string in a call: `, name=`, or `)` and no more on the line, or no more at all on the line."""


def read_calls(text: str, grammar: Grammar) -> list[Call]:
    """Return the calls in a text, one a line or separated by blank lines, in linear time.

    A call may lack its last bracket where nothing else stands on the line: the authors' parser adds it.

    Args:
        text: What follows `Action:`. A comment (`# …`, as in the prompt) may follow a call.
        grammar: The names that may stand in it.

    Raises:
        ActionParseError: `bad_syntax` or `bad_argument`.
    """
    return _Reader(text, grammar).calls()


class _Reader:
    """A cursor over the text; every method moves it forward, so that the whole is linear."""

    def __init__(self, text: str, grammar: Grammar) -> None:
        self._text = text
        self._grammar = grammar
        self._at = 0
        self._typed_in = set[str]()
        """The quotes in which texts to type have stood."""
        self._strict = False

    def calls(self) -> list[Call]:
        calls = []
        self._skip_comments()
        while self._at < len(self._text):
            calls.append(self._call())
            self._read(_SPACE_ON_A_LINE)
            if self._text[self._at : self._at + 1] not in ("", "\n", "#"):
                self._fail("expected the end of the line after an action")
            self._skip_comments()
        return calls

    def _skip_comments(self) -> None:
        skipped = self._read(SPACE_AND_COMMENTS)
        if self._typed_in:
            check_comments(skipped, self._typed_in)

    def _call(self) -> Call:
        name = self._name()
        self._strict = name in self._grammar.strict
        self._expect("(")
        arguments: dict[str, Value] = {}
        while not self._lacks_its_bracket() and self._peek() != ")":
            self._argument(name, arguments)
            if self._lacks_its_bracket() or self._peek() != ",":
                break
            self._at += 1
        if not self._lacks_its_bracket():
            self._expect(")")
        return Call(name, arguments)

    def _argument(self, call: str, arguments: dict[str, Value]) -> None:
        if not self._strict and self._skip_nameless():
            arguments["value without a name"] = Value("…", quoted=True)
            return
        argument = self._name()
        self._expect("=")
        if argument in arguments:
            raise ActionParseError(
                ParseErrorKind.BAD_ARGUMENT, f"{call[:40]} has the argument {argument[:40]!r} twice"
            )
        arguments[argument] = self._value(argument)

    def _skip_nameless(self) -> bool:
        """Skip `5` of `wait(5)` and `'help'` of `call_user('help')`: the authors' parser takes no notice of them."""
        if self._read(_NUMBER):
            return True
        if self._peek() not in ("'", '"'):
            return False
        self._value("")
        return True

    def _lacks_its_bracket(self) -> bool:
        """Return whether the line ends here, and behind it the response or another call begins."""
        if self._strict:
            return False
        line_end = end_of(_SPACE_ON_A_LINE, self._text, self._at)
        if self._text[line_end : line_end + 1] not in ("", "\n", "#"):
            return False
        after = end_of(SPACE_AND_COMMENTS, self._text, line_end)
        name_end = end_of(_NAME, self._text, after)
        return after == len(self._text) or (
            self._text[after:name_end] in self._grammar.actions and self._text.startswith("(", name_end)
        )

    def _name(self) -> str:
        self._read(_SPACE)
        name = self._read(_NAME)
        if not name:
            self._fail("expected a name")
        return name

    def _value(self, argument: str) -> Value:
        opening = self._peek()
        if opening in ("'", '"'):
            return Value(self._string(argument), quoted=True)
        if opening in _BRACKETS:
            return Value(self._bracketed(), quoted=False)
        for tag, closing in TAGS.items():
            if self._text.startswith(tag, self._at):
                return Value(self._until(closing), quoted=False)
        if (self._strict or argument not in self._grammar.arguments) and (bare := self._read(_BARE)):
            return Value(bare, quoted=False)
        self._fail("expected a quoted string or a position")

    def _string(self, argument: str) -> str:
        start = self._at
        if self._strict:
            self._typed_in.add(self._text[start])
            end = self._first_quote(start)
        elif argument in self._grammar.texts:
            end = find_end(self._text, start, self._grammar.actions)
            self._typed_in.add(self._text[start])
        else:
            end = self._quote_before_the_rest(start)
        self._at = end + 1
        return _ESCAPE.sub(lambda found: ESCAPES.get(found[1], found[0]), self._text[start + 1 : end])

    def _first_quote(self, start: int) -> int:
        """Return where a string ends in which quotes are escaped; more of it, such as behind `it`s, is refused."""
        quote = self._text[start]
        for found in _QUOTE_OR_ESCAPE.finditer(self._text, start + 1):
            if found[0] == quote:
                if _GOES_ON_STRICTLY.match(self._text, found.end()):
                    return found.start()
                break
        self._fail(f"the string that starts with {self._text[start : start + 21]!r} has no end, or a bare quote")

    def _quote_before_the_rest(self, start: int) -> int:
        """Return where a string ends that is no text to type: at the first quote behind which the call can go on."""
        quote = self._text[start]
        for found in _QUOTE_OR_ESCAPE.finditer(self._text, start + 1):
            if found[0] == quote:
                if _GOES_ON.match(self._text, found.end()):
                    return found.start()
                if self._opens_another_call(start + 1, found.start()):
                    break
        self._fail(f"the string that starts with {self._text[start : start + 21]!r} has no end")

    def _opens_another_call(self, start: int, at: int) -> bool:
        """Tell whether the quote at a position opens the first argument of a known action: `click(start_box='`."""
        before = self._text[max(start, at - 60) : at].rstrip()
        opening = _OPENING.search(before) if before.endswith("=") else None
        return opening is not None and opening[1] in self._grammar.actions

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
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _fail(self, message: str) -> NoReturn:
        found = self._text[self._at : self._at + 20] or "the end of the response"
        error = TypedTextError if self._typed_in else ActionParseError  # the text may have gone on
        raise error(ParseErrorKind.BAD_SYNTAX, f"{message}, at {found!r}")
