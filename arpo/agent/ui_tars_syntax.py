"""Text to calls: the syntax of UI-TARS's actions, read in one pass. What a call means is the part of `ui_tars.py`.

The prompt asks for escapes in a typed text, and where they are there the first bare quote ends it. But models write
`type(content='print('a')  # note')`, and half of a command is worse than none: **a text is read whole or refused.**

A bare quote ends the text only where the call can end too: before `)` and the end of the line, or before a position or
a bare value (`type(content='a', start_box='(1,2)')`, as in training examples; `type(content='a', clear=True)`). Of
several such quotes the first one counts that

- is not the text's own: in `print('a')  # note` the bracket before the quote was opened by the text, and a quote after
  it, so that `')` closes these two and not the call;
- leaves nothing but calls and comments behind it.

Two readings that would type different texts are an error: `type(content='a', b='c')`, `type(content='a') # b')`, and a
text that is cut behind one of its own quotes. One case cannot be distinguished from a plain answer, and is read as
one: a text that itself holds `')`, a newline and a whole call, or `', start_box='(1,2)`.
"""

import re
from collections.abc import Mapping, Set
from typing import NamedTuple, NoReturn

from arpo.agent.response import TAGS, ParseErrorKind, refuse
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
    """The names by which parts of a response differ where quotes and brackets do not."""

    actions: Set[str]
    arguments: Set[str]
    """The arguments that mean something; the value of any other may be a bare word or number."""
    texts: Set[str]
    """Those of them that hold text to type, in which quotes may be bare."""
    strict: Set[str]
    """The actions of our own, which no author's model writes in ways of its own: every argument has a name, a quote in
    a string is escaped, and the last bracket is there, or else the response may have been cut."""


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
"""The characters that may follow a backslash in a string. Before any other it is itself, as in `C:\\Users`."""

_BRACKETS = {"(": ")", "[": "]"}
_OPENING = re.compile(r"(\w+)\(\s*[^\W\d]\w*\s*=\Z")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)

# Here and below possessive quantifiers, so that nothing is read twice.
_SPACE = re.compile(r"\s*+")
_SPACE_ON_A_LINE = re.compile(r"[^\S\n]*+")
_NAME = re.compile(r"\w*+")
_NUMBER = re.compile(r"\d++(?:\.\d++)?+s?+(?=\s*+(?:[,)]|\Z))")
_BARE = re.compile(r"[^\s,()'\"#]++")
_QUOTE_OR_ESCAPE = re.compile(r"""\\.?|['"]""", re.DOTALL)
_GOES_ON_STRICTLY = re.compile(r"\s*+[,)]")
_GOES_ON = re.compile(r"\s*+(?:,\s*+(?:\)|\Z|\w++\s*+=)|\)[^\S\n]*+(?:[\n#]|\Z))|[^\S\n]*+(?:[\n#]|\Z)")
"""What follows a string in a call: `, name=`, or `)` and no more on the line, or no more at all on the line."""

_POSITIONS = ("start_box", "end_box", "start_point", "end_point", "point")
"""Arguments that may follow a typed text: `data/training_example.json` of bytedance/UI-TARS lists
`type(content='', start_box='…')`, and the tests of UI-TARS-desktop's parser have it."""

_SPACE_AND_COMMENTS = re.compile(r"\s*+(?:#[^\n]*+\s*+)*+")

_PART = re.compile(r"""\\.?|[()'"]|[^\\()'"]++""", re.DOTALL)
_LINE_END = r"[^\S\n]*+(?:[\n#]|\Z)"
_CALL_ENDS = re.compile(rf"\s*+,?+\s*+\)(?={_LINE_END})")
_TAG = r"(?:<\W?\w++\W?>)?+"
_POSITION = rf"(?:{_TAG}[\s()（）\[\]]*+\d[-.,，\d\s()（）\[\]]*+{_TAG})?+"
_BARE_POSITION = r"[(\[<][^'\"\n]{0,80}?[)\]>]"
_POSITION_FOLLOWS = re.compile(
    rf"(?:\s*+,\s*+(?:{'|'.join(_POSITIONS)})\s*+=\s*+(?:'{_POSITION}'|\"{_POSITION}\"|{_BARE_POSITION})){{1,2}}"
    rf"(?:\s*+,?+\s*+\){_LINE_END}|\s*+\Z)"
)
_BARE_VALUE_FOLLOWS = re.compile(rf"(?:\s*+,\s*+\w++\s*+=\s*+[\w.-]++)++\s*+,?+\s*+\){_LINE_END}")
_ARGUMENT_FOLLOWS = re.compile(r"\s*+,\s*+\w++\s*+=\s*+['\"(\[<]")
_RESPONSE_ENDS = re.compile(r"\s*+\Z")
_MAY_OPEN = re.compile(r"[\s([{<=,:;+\-&|*/^~@$#]")
"""What stands before a quote that opens rather than closes."""
_CALL = re.compile(r"(?:Action\s*+[:：]\s*+)?+\w++\s*+\(")
_APOSTROPHE = re.compile(r"(?:(?<=\w\w)|(?<=\bI))['\"](?=\w)")
_OPENED_ARGUMENT = re.compile(
    rf"(?:[\n;)]\s*(?:Action\s*[:：]\s*)?(\w+)\(\s*\w+|(,)\s*(?:{'|'.join(_POSITIONS)}))\s*=\Z"
)
_LOOK_BACK = 80
_ADVICE = "write quotes in a text as \\' or \\\""


def read_calls(text: str, grammar: Grammar) -> list[Call]:
    """Return the calls behind `Action:`, one a line or separated by blank lines, in linear time.

    A comment (`# …`, as in the prompt) may follow a call, and a call may lack its last bracket where nothing else
    stands on the line: the authors' parser adds it.
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
        skipped = self._read(_SPACE_AND_COMMENTS)
        if self._typed_in:
            _check_comments(skipped, self._typed_in)

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
            refuse(ParseErrorKind.BAD_ARGUMENT, f"{call[:40]} has the argument {argument[:40]!r} twice")
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
        line_end = _end_of(_SPACE_ON_A_LINE, self._text, self._at)
        if self._text[line_end : line_end + 1] not in ("", "\n", "#"):
            return False
        after = _end_of(_SPACE_AND_COMMENTS, self._text, line_end)
        name_end = _end_of(_NAME, self._text, after)
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
            end = self._closing_quote(start)
        elif argument in self._grammar.texts:
            end = _TypedText(self._text, start, self._grammar.actions).end()
            self._typed_in.add(self._text[start])
        else:
            end = self._closing_quote(start)
        self._at = end + 1
        return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), self._text[start + 1 : end])

    def _closing_quote(self, start: int) -> int:
        """Return the end of a string that is no text to type: the first quote behind which the call can go on.

        In a strict call quotes are escaped, and more of a string, such as behind `it`s, is refused.
        """
        quote, goes_on = self._text[start], _GOES_ON_STRICTLY if self._strict else _GOES_ON
        for found in _QUOTE_OR_ESCAPE.finditer(self._text, start + 1):
            if found[0] != quote:
                continue
            if goes_on.match(self._text, found.end()):
                return found.start()
            before = self._text[max(start + 1, found.start() - 60) : found.start()].rstrip()
            opening = _OPENING.search(before) if before.endswith("=") else None
            if self._strict or (opening and opening[1] in self._grammar.actions):  # such as `click(start_box='`
                break
        problem = "has no end, or a bare quote" if self._strict else "has no end"
        self._fail(f"the string that starts with {self._text[start : start + 21]!r} {problem}")

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


# --- the end of a typed text ----------------------------------------------------------------------------------------


class TypedTextError(ActionParseError):
    """A typed text without an end, or with more than one."""


def _check_comments(comments: str, quotes: Set[str]) -> None:
    """Check that no comment behind a call may be the rest of the text that was typed in such quotes: `# note')`."""
    for quote in re.finditer(f"[{''.join(quotes)}]", comments):
        if _CALL_ENDS.match(comments, quote.end()) or _POSITION_FOLLOWS.match(comments, quote.end()):
            message = f"{comments.strip()[:20]!r} may be a comment or the rest of the typed text; {_ADVICE}"
            raise TypedTextError(ParseErrorKind.BAD_SYNTAX, message)


class _TypedText:
    """A text whose parts are read from left to right, in linear time, and what is known of it so far.

    It begins with a quote at `start`; by the known `actions`, the beginning of another call is recognized.
    """

    def __init__(self, text: str, start: int, actions: Set[str]) -> None:
        self._text, self._start, self._actions = text, start, actions
        self._quotes = 0
        """Bare quotes of the kind that the text stands in, apostrophes not counted."""
        self._brackets: list[int] = []
        """How many quotes there were before each bracket that is open."""
        self._looked_to, self._calls_follow = 0, False

    def end(self) -> int:
        """Return the place of the closing quote."""
        quote, bare = self._text[self._start], 0
        for found in _PART.finditer(self._text, self._start + 1):
            match found[0]:
                case "(":
                    self._brackets.append(self._quotes)
                case ")":
                    del self._brackets[-1:]
                case part if part == quote:
                    if self._ends_at(found.start(), escaped=bare == 0):
                        return found.start()
                    bare += 1
                    self._quotes += _APOSTROPHE.match(self._text, found.start()) is None
        raise self._error("has no end, or may have been cut")

    def _ends_at(self, at: int, *, escaped: bool) -> bool:
        """Return whether a bare quote ends the text; `escaped` where it is the first one."""
        if self._opens_an_argument(at):
            raise self._error(f"runs into another call or argument at {self._text[at : at + 20]!r}")
        position_follows = _POSITION_FOLLOWS.match(self._text, at + 1) is not None
        if escaped and not position_follows and _ARGUMENT_FOLLOWS.match(self._text, at + 1):
            message = f"may end before {self._text[at : at + 20]!r} or hold it; {_ADVICE}"
            raise self._error(message, ParseErrorKind.BAD_ARGUMENT)
        if not escaped and self._brackets and (self._quotes - self._brackets[-1]) % 2:
            return False
        if position_follows:
            return True
        if self._is_balanced() and _BARE_VALUE_FOLLOWS.match(self._text, at + 1):
            return True
        if closing := _CALL_ENDS.match(self._text, at + 1):
            return escaped or self._only_calls_follow(closing.end())
        return escaped and self._lacks_its_bracket(at)

    def _is_balanced(self) -> bool:
        """Return whether the text so far has closed its own brackets and quotations."""
        return not self._brackets and self._quotes % 2 == 0

    def _opens_an_argument(self, at: int) -> bool:
        """Return whether the quote opens an argument of a call, this one or another: a quote was forgotten."""
        before = self._text[max(self._start + 1, at - _LOOK_BACK) : at].rstrip()
        opened = _OPENED_ARGUMENT.search(before) if before.endswith("=") else None
        return opened is not None and (opened[1] in self._actions or (bool(opened[2]) and not self._brackets))

    def _only_calls_follow(self, at: int) -> bool:
        if at >= self._looked_to:  # comments may hold quotes: what was looked over is not looked over again
            self._looked_to = _end_of(_SPACE_AND_COMMENTS, self._text, at)
            rest = self._looked_to
            self._calls_follow = rest == len(self._text) or _CALL.match(self._text, rest) is not None
        return self._calls_follow

    def _lacks_its_bracket(self, at: int) -> bool:
        """Return whether only the bracket is missing, and the quote cannot be one that opens: `git commit -m '`."""
        if at == self._start + 1 or _MAY_OPEN.match(self._text, at - 1) or not self._is_balanced():
            return False
        return _RESPONSE_ENDS.match(self._text, at + 1) is not None

    def _error(self, problem: str, kind: ParseErrorKind = ParseErrorKind.BAD_SYNTAX) -> TypedTextError:
        opening = self._text[self._start : self._start + 21]
        return TypedTextError(kind, f"the text that starts with {opening!r} {problem}")


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of a pattern's match at a position: the position itself where nothing matches."""
    match = pattern.match(text, at)
    return match.end() if match else at
