import contextlib
import time

import pytest

from arpo.agent.actions import TypeText
from arpo.agent.grammar import GRAMMARS
from arpo.agent.parser import parse_response
from arpo.errors import ActionParseError

PIECES = [
    "(",
    "'",
    "\\",
    "')",
    "', a=",
    "') a(",
    " ",
    "#",
    "a(",
    "\nAction:",
    "type(content='a\n",
    "click(start_box='",
    "<|box_start|>",
    "it's')\n",
    "')\n#')\n\n",
    "', point='(1,",
    "('",
    "\nAction: type(content='",
    "call(function='",
]


@pytest.mark.parametrize(
    "opening",
    ["Action: type(content='", "Action: type(content='a')", "Action: click(start_box=", "Action: call(function='", ""],
)
def test_time_grows_no_faster_than_the_response(opening):
    # 100,000 characters take 0.03 to 0.3 s of processor time; a quadratic parser would need minutes.
    for piece in PIECES:
        text = opening + piece * (100_000 // len(piece))
        start = time.process_time()
        with contextlib.suppress(ActionParseError):
            parse_response(text)
        assert time.process_time() - start < 5, piece


@pytest.mark.parametrize("grammar", ["computer_use", "computer_use_xml"])
@pytest.mark.parametrize(
    "opening", ["", "<tool_call>{'name': 'f', 'arguments': ", "<tool_call><function=f><parameter=a>"]
)
def test_calls_of_tools_are_read_in_linear_time_too(grammar, opening):
    for piece in (
        "</think>",
        '<tool_call>{"a": "</think>',
        "<function=a><parameter=b></think>",
        "{",
        "{'a':",
        "'a' ",
        "\\",
    ):
        start = time.process_time()
        with contextlib.suppress(ActionParseError):
            GRAMMARS[grammar].parse(opening + piece * (500_000 // len(piece)) + "</think>")
        assert time.process_time() - start < 5, piece


def test_a_million_characters_and_brackets_without_end_are_read_or_refused():
    text = "it's (fine) " * 80_000
    assert parse_response(f"Action: type(content='{text}')").actions == (TypeText(text),)
    for deep in ("(" * 100_000, "[" * 100_000, "('" * 100_000, "(" * 100_000 + ")" * 100_000):
        for call in (
            f"click(start_box={deep})",
            f"click(start_box='{deep}')",
            f"type(content='it's{deep}",
            f"hover{deep}",
        ):
            with pytest.raises(ActionParseError):
                parse_response(f"Action: {call}")


def test_messages_stay_short_whatever_the_response():
    for text in ("Action: " + "a" * 200_000 + "()", "Action: click(start_box='" + "9" * 200_000 + "')"):
        with pytest.raises(ActionParseError) as caught:
            parse_response(text)
        assert len(str(caught.value)) < 500
