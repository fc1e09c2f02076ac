"""Responses of Qwen's models: a thought, and calls of tools in tags, with JSON or XML inside.

    I click Save.                   a thought, optional; one that ends with </think> may draft calls
    <tool_call>
    ...                             a call
    </tool_call>                    more calls may follow, and a word to the user

What else is read is in docs/answers.md. The reader never guesses: what may be a part of a call that was not read is an
error.
"""

import ast
import io
import json
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NoReturn

from arpo.agent.response import MAX_CHARACTERS, THOUGHT_ENDS, ParseErrorKind, check_length, refuse
from arpo.errors import ActionParseError

OPENING, CLOSING = "<tool_call>", "</tool_call>"

Call = tuple[str, Mapping[str, Any]]
"""The name of a function, and its arguments."""
ReadCall = Callable[[str, int], tuple[Call, int]]
"""A reader of the call that begins at a place of a text; it returns the call and its end."""

_SPACE = re.compile(r"\s*+")
_BEFORE = re.compile(r'</?(?:tool_call|function|parameter)\b|["\']arguments["\']\s*+:')
"""What stands in calls and in no thought: where it stands before the first call, one was not read;"""
_BETWEEN = re.compile(r"\S")
"""so it may be by any word between two calls, which may also take the first back;"""
_BEHIND = re.compile(_BEFORE.pattern + r'|["\'](?:name|action)["\']\s*+:')
"""and so by the beginning of a call behind the last one."""
_MOST_DRAFTS = 16
"""Calls and ends of thoughts that are looked at, so that the time stays linear."""
_MOST_PYTHON = 20_000
"""Characters of a call in Python's quotes."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_ESCAPES = frozenset("\\'\"nrt")


def read_calls(text: str, read: ReadCall, opening: re.Pattern[str]) -> tuple[str, list[Call]]:
    """Return the thought and the calls of a response.

    `opening` finds the beginning of a call, its tag or what may stand without it, and `read` reads on behind it.
    """
    check_length(text, "response", MAX_CHARACTERS, ParseErrorKind.TOO_LONG)
    if not text.strip():
        refuse(ParseErrorKind.EMPTY, "the response is empty")
    start = at = _end_of_thought(text, read, opening)
    calls: list[Call] = []
    while found := opening.search(text, at):
        if not calls:
            start = found.start()
        _check_none(text[at : found.start()], _BETWEEN if calls else _BEFORE)
        call, at = read(text, found.end())
        calls.append(call)
        closing = _skip(text, at)
        at = closing + len(CLOSING) if text.startswith(CLOSING, closing) else at
    if not calls:
        refuse(ParseErrorKind.NO_ACTION, f"the response has no {OPENING}")
    _check_none(text[at:], _BEHIND)
    return text[:start].strip(), calls


def write_calls(calls: Sequence[str], thought: str, between: str) -> str:
    """Return a response with calls that are written, and `between` behind its thought."""
    thought = thought.strip()
    if _BEFORE.search(thought.rpartition(THOUGHT_ENDS)[2]) or thought.startswith("{"):
        raise ValueError(f"a thought must not hold a part of a call, got {thought[:80]!r}")
    whole = "\n".join(f"{OPENING}\n{call}\n{CLOSING}" for call in calls)
    return f"{thought}{between}{whole}" if thought else whole


def _end_of_thought(text: str, read: ReadCall, opening: re.Pattern[str]) -> int:
    """Return the end of the last thought that is closed by a tag, which no call has typed; 0 where none is."""
    begin = at = 0
    for _ in range(2 * _MOST_DRAFTS):  # a call, and the tag behind it
        end = text.find(THOUGHT_ENDS, at)
        if end < 0:
            break
        if call := opening.search(text, at, end):
            at = call.start() + 1
            with suppress(ActionParseError):  # a draft
                at = max(at, read(text, call.end())[1])
        else:
            begin = at = end + len(THOUGHT_ENDS)
    if THOUGHT_ENDS in text[at:]:
        refuse(ParseErrorKind.BAD_SYNTAX, f"a thought drafts more than {_MOST_DRAFTS} calls")
    return begin


def _check_none(text: str, remains: re.Pattern[str]) -> None:
    if found := remains.search(text):
        rest = text[found.start() : found.start() + 40]
        refuse(ParseErrorKind.BAD_SYNTAX, f"expected a call in {OPENING}, or none, got {rest!r}")


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None, "it matches nothing too"
    return match.end()


# --- JSON, and the same in Python's quotes ---------------------------------------------------------------------------


def read_json(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a place of a text, in JSON or in Python's quotes, and its end."""
    at = _skip(text, at)
    try:
        return _DECODER.raw_decode(text, at)
    except ActionParseError:
        raise  # of the decoder's own hooks
    except (ValueError, RecursionError) as error:
        end = text.find(CLOSING, at)
        end = len(text) if end < 0 else end
        try:
            return _literal(text[at:end].strip()), end
        except ActionParseError:
            raise
        except (ValueError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError):
            raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"a call is no JSON: {str(error)[:80]}") from error


def _distinct(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(content := dict(pairs)) < len(pairs):
        refuse(ParseErrorKind.BAD_ARGUMENT, "a call has a key twice")
    return content


def _no_number(name: str) -> NoReturn:
    refuse(ParseErrorKind.BAD_ARGUMENT, f"{name} is no number")


# A line break in a string is one: it has no other meaning.
_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_number, strict=False)
_CONSTANTS = {"true": True, "false": False, "null": None}


def _literal(text: str) -> Any:
    """Return the value of a Python literal, and never one that its writer cannot have meant."""
    if len(text) > _MOST_PYTHON or not _PLAIN_ESCAPES.issuperset(_ESCAPE.findall(text)):
        raise ValueError("too long, or with an escape that JSON would refuse")
    tokens = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.string.strip()]
    if (tokenize.STRING, tokenize.STRING) in pairwise(tokens):
        raise ValueError("two strings in a row: a quote in a string is not escaped")
    return _value(ast.parse(text, mode="eval").body, text)


def _value(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Dict(keys, values) if all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys
        ):
            pairs = zip(keys, values, strict=True)
            return _distinct(
                [(key.value, _value(value, text)) for key, value in pairs if isinstance(key, ast.Constant)]
            )
        case ast.List(elements) | ast.Tuple(elements):
            return [_value(element, text) for element in elements]
        case ast.Constant(str() | bool() | None as value):
            return value
        case ast.Constant() | ast.UnaryOp(ast.USub(), ast.Constant()):
            return json.loads(ast.get_source_segment(text, node) or "")  # a number, if it is one in JSON too
        case ast.Name(name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case _:
            raise ValueError(f"{ast.unparse(node)[:40]} is no value")
