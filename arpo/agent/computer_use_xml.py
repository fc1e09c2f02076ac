"""Response to actions and back, in the grammar of Qwen3.5: calls of the tool `computer_use` as XML.

    I click Save.                   a thought, optional
    <tool_call>
    <function=computer_use>
    <parameter=action>
    left_click
    </parameter>
    <parameter=coordinate>
    [500, 250]
    </parameter>
    </function>
    </tool_call>                    more calls may follow

The tool, its actions and what is refused are those of `arpo.agent.computer_use`. A value is what stands between its
tags, but for a line break on either side. Of the tool, a text is taken as it stands, and all else is JSON. Of another
function, a value that is a number, true, false or a text in quotes in JSON is that, and any other is a text. A value
that holds a tag of this grammar is refused, for a tag has been left out before it.
"""

import json
import re
from typing import Any

from arpo.agent.actions import Action
from arpo.agent.computer_use import DECODER, TOOL, Call, read_calls, write_calls
from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.parser import ParsedResponse
from arpo.errors import ActionParseError

TEXTS = ("action", "text", "status")
"""The arguments of the tool that are no JSON."""

_NAME = re.compile(r"[^<>\s]+")
_FUNCTION = re.compile(r"<function=([^<>\s]+)>\s*+")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?(.*?)\n?</parameter>\s*+", re.DOTALL)
_TAG = re.compile(r"</?(?:function|parameter)[=>]")


def parse_response(text: str, *, max_actions: int | None = None) -> ParsedResponse:
    """Return the thought and the actions of a response; arguments and errors are those of `arpo.agent.parser`."""
    return read_calls(text, _read, max_actions)


def render_response(action: Action, thought: str = "", *others: Action) -> str:
    """Return a whole response: a thought, if there is one, an action, and perhaps others behind it.

    Raises:
        ValueError: If no call means this action, the thought holds a tag of a call, a text one of a value, or a
            function or an argument has a name that no tag can hold.
    """
    return write_calls(_written, action, thought, *others)


def _read(text: str, at: int) -> tuple[dict[str, Any], int]:
    function = _FUNCTION.match(text, at)
    if function is None:
        raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"expected <function=name>, got {text[at : at + 40]!r}")
    name, at = function[1], function.end()
    given: dict[str, Any] = {}
    while parameter := _PARAMETER.match(text, at):
        key, value, at = parameter[1], parameter[2], parameter.end()
        if stray := _TAG.search(value):
            raise ActionParseError(ParseErrorKind.BAD_SYNTAX, f"the value of {key[:40]} holds the tag {stray[0]}")
        if key in given:
            raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, f"a call has the parameter {key[:40]} twice")
        given[key] = _value(name, key, value)
    if not text.startswith("</function>", at):
        said = f"expected <parameter=name>, its value and </parameter>, or </function>, got {text[at : at + 40]!r}"
        raise ActionParseError(ParseErrorKind.BAD_SYNTAX, said)
    return {"name": name, "arguments": given}, at + len("</function>")


def _value(name: str, key: str, value: str) -> Any:
    if name != TOOL:
        return _scalar(value)
    if key in TEXTS:
        return value
    try:
        return DECODER.decode(value)
    except ActionParseError:
        raise  # of the decoder's own hooks
    except (ValueError, RecursionError) as error:
        said = f"{key[:40]} must be JSON, got {value[:40]!r}"
        raise ActionParseError(ParseErrorKind.BAD_ARGUMENT, said) from error


def _scalar(value: str) -> str | int | float | bool:
    """Return what a value of a function other than the tool means."""
    try:
        content = DECODER.decode(value)
    except (ActionParseError, ValueError, RecursionError):
        return value
    return content if isinstance(content, str | int | float) else value


def _written(call: Call) -> str:
    name, given = call
    if not all(_NAME.fullmatch(each) for each in (name, *given)):
        raise ValueError(f"a name must hold no space and no bracket of a tag, got {name[:40]!r} of {list(given)}")
    parts = [f"<function={name}>"]
    for key, value in given.items():
        said = value if _stands_for_itself(name, value) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        if _TAG.search(said):
            raise ValueError(f"a value must not hold {_TAG.pattern}, got {said[:80]!r}")
        parts += [f"<parameter={key}>", said, "</parameter>"]
    return "\n".join([*parts, "</function>"])


def _stands_for_itself(name: str, value: Any) -> bool:
    return isinstance(value, str) and (name == TOOL or _scalar(value) == value)
