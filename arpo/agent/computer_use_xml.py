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

The tool, its actions and the refusals are those of `arpo.agent.computer_use`. A value is what stands between its
tags, but for a line break on either side, and its type is that which the function has for it. A value that holds a tag
of this grammar is refused, for a tag has been left out before it.
"""

import json
import re
from typing import Any

from arpo.agent.actions import Action
from arpo.agent.computer_use import COMPUTER, calls_of
from arpo.agent.response import ParsedResponse, ParseErrorKind, refuse
from arpo.agent.tool_calls import Call, write_calls

OPENING = re.compile(r"<tool_call>|(?=<function=)")
"""The beginning of a call, whose tag Qwen3.5 leaves out at times."""
_NAME = re.compile(r"[^<>\s]+")
_FUNCTION = re.compile(r"\s*+<function=([^<>\n]+)>\s*+")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>\n?(.*?)\n?</parameter>\s*+", re.DOTALL)
_TAG = re.compile(r"</?(?:function|parameter)\b")


def parse_response(text: str) -> ParsedResponse:
    """Return the thought and the actions of a response.

    The arguments of a function of the desktop are texts; `arpo.agent.functions.typed` gives them their types.
    """
    return COMPUTER.parse(text, read_call, OPENING)


def render_response(action: Action, thought: str = "", *others: Action) -> str:
    """Return a whole response: a thought, if there is one, an action, and perhaps others behind it."""
    return write_calls([_written(call) for call in calls_of(action, *others)], thought, "\n\n")


def read_call(text: str, at: int) -> tuple[Call, int]:
    """Return the call that begins at a place of a text, and its end."""
    function = _FUNCTION.match(text, at)
    if function is None:
        rest = text[at : at + 40].strip()
        refuse(ParseErrorKind.BAD_SYNTAX, f"expected <function=name>, got {rest!r}")
    name, at = function[1].strip(), function.end()
    given: dict[str, Any] = {}
    while parameter := _PARAMETER.match(text, at):
        key, value, at = parameter[1].strip(), parameter[2], parameter.end()
        if stray := _TAG.search(value):
            refuse(ParseErrorKind.BAD_SYNTAX, f"the value of {key[:40]} holds the tag {stray[0]}")
        if key in given:
            refuse(ParseErrorKind.BAD_ARGUMENT, f"a call has the parameter {key[:40]} twice")
        given[key] = value
    if not text.startswith("</function>", at):
        wanted = "<parameter=name>, its value and </parameter>, or </function>"
        refuse(ParseErrorKind.BAD_SYNTAX, f"expected {wanted}, got {text[at : at + 40]!r}")
    return (name, given), at + len("</function>")


def _written(call: Call) -> str:
    name, given = call
    if not all(_NAME.fullmatch(each) for each in (name, *given)):
        raise ValueError(f"a name must hold no space and no bracket of a tag, got {name[:40]!r} of {list(given)}")
    parts = [f"<function={name}>"]
    for key, value in given.items():
        # As the model's own template writes it.
        said = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
        if _TAG.search(said):
            raise ValueError(f"a value must not hold {_TAG.pattern}, got {said[:80]!r}")
        parts += [f"<parameter={key}>", said, "</parameter>"]
    return "\n".join([*parts, "</function>"])
