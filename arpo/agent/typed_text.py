"""The end of a typed text, in a call whose writer does not escape quotes.

The prompt asks for escapes, and where they are there the first bare quote ends the text. But models write
`type(content='print('a')  # note')`, and half of a command is worse than none: **a text is read whole or refused.**

A bare quote ends the text only where the call can end too: before `)` and the end of the line, or before a position or
a bare value (`type(content='a', start_box='(1,2)')`, as in training examples; `type(content='a', clear=True)`). Of
several such quotes the first one counts that

- is not the text's own: in `print('a')  # note` the bracket before the quote was opened by the text, and a quote after
  it, so that `')` closes these two and not the call;
- leaves nothing but calls and comments behind it.

Two readings that would type different texts are an error: `type(content='a', b='c')`, `type(content='a') # b')`, and a
text that is cut behind one of its own quotes. One case cannot be told from a plain answer, and is read as one: a text
that itself holds `')`, a newline and a whole call, or `', start_box='(1,2)`.
"""

import re
from collections.abc import Set

from arpo.agent.error_kinds import ParseErrorKind
from arpo.errors import ActionParseError

POSITIONS = ("start_box", "end_box", "start_point", "end_point", "point")
"""Arguments that may follow a typed text: `data/training_example.json` of bytedance/UI-TARS lists
`type(content='', start_box='…')`, and the tests of UI-TARS-desktop's parser have it."""

SPACE_AND_COMMENTS = re.compile(r"\s*+(?:#[^\n]*+\s*+)*+")

# Possessive quantifiers, so that nothing is read twice.
_PART = re.compile(r"""\\.?|[()'"]|[^\\()'"]++""", re.DOTALL)
_LINE_END = r"[^\S\n]*+(?:[\n#]|\Z)"
_CALL_ENDS = re.compile(rf"\s*+,?+\s*+\)(?={_LINE_END})")
_TAG = r"(?:<\W?\w++\W?>)?+"
_POSITION = rf"(?:{_TAG}[\s()（）\[\]]*+\d[-.,，\d\s()（）\[\]]*+{_TAG})?+"
_BARE_POSITION = r"[(\[<][^'\"\n]{0,80}?[)\]>]"
_POSITION_FOLLOWS = re.compile(
    rf"(?:\s*+,\s*+(?:{'|'.join(POSITIONS)})\s*+=\s*+(?:'{_POSITION}'|\"{_POSITION}\"|{_BARE_POSITION})){{1,2}}"
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
    rf"(?:[\n;)]\s*(?:Action\s*[:：]\s*)?(\w+)\(\s*\w+|(,)\s*(?:{'|'.join(POSITIONS)}))\s*=\Z"
)
_LOOK_BACK = 80
_ADVICE = "write quotes in a text as \\' or \\\""


class TypedTextError(ActionParseError):
    """A typed text without an end, or with more than one."""


def find_end(text: str, start: int, actions: Set[str]) -> int:
    """Return where the closing quote of a typed text stands, in linear time.

    Args:
        text: What follows `Action:`.
        start: Where the opening quote stands.
        actions: The known actions, by which the beginning of another call is recognized.

    Raises:
        TypedTextError: `bad_syntax` or `bad_argument`.
    """
    return _TypedText(text, start, actions).end()


def check_comments(comments: str, quotes: Set[str]) -> None:
    """Check that no comment behind a call may be the rest of the text that was typed: `# note')`.

    Args:
        comments: Lines, of which some hold a comment.
        quotes: The quotes in which texts were typed.

    Raises:
        TypedTextError: `bad_syntax`.
    """
    for quote in re.finditer(f"[{''.join(quotes)}]", comments):
        if _CALL_ENDS.match(comments, quote.end()) or _POSITION_FOLLOWS.match(comments, quote.end()):
            message = f"{comments.strip()[:20]!r} may be a comment or the rest of the typed text; {_ADVICE}"
            raise TypedTextError(ParseErrorKind.BAD_SYNTAX, message)


class _TypedText:
    """A text whose parts are read from left to right, and what is known of it so far."""

    def __init__(self, text: str, start: int, actions: Set[str]) -> None:
        self._text, self._start, self._actions = text, start, actions
        self._quotes = 0
        """Bare quotes of the kind that the text stands in, apostrophes not counted."""
        self._brackets: list[int] = []
        """How many quotes there were before each bracket that is open."""
        self._looked_to, self._calls_follow = 0, False

    def end(self) -> int:
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
        if escaped:
            self._check_not_an_argument(at)
        elif self._brackets and (self._quotes - self._brackets[-1]) % 2:
            return False
        if _POSITION_FOLLOWS.match(self._text, at + 1):
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

    def _check_not_an_argument(self, at: int) -> None:
        if _ARGUMENT_FOLLOWS.match(self._text, at + 1) and not _POSITION_FOLLOWS.match(self._text, at + 1):
            rest = self._text[at : at + 20]
            message = f"may end before {rest!r} or hold it; {_ADVICE}"
            raise self._error(message, ParseErrorKind.BAD_ARGUMENT)

    def _only_calls_follow(self, at: int) -> bool:
        if at >= self._looked_to:  # comments may hold quotes: what was looked over is not looked over again
            self._looked_to = end_of(SPACE_AND_COMMENTS, self._text, at)
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


def end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where a pattern's match at a position ends: the position itself where nothing matches."""
    match = pattern.match(text, at)
    return match.end() if match else at
