"""A typed text is read whole or refused, whatever stands in it and whether or not its quotes were escaped."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arpo.agent.actions import Finished, TypeText
from arpo.agent.parser import parse_response
from arpo.errors import ActionParseError

PIECES = [
    *"'\"()[]#,= \n\tab.:;$", "it's", "print('a')", "')", "') ", "')\n", "', ", "') # ", "\r\n", "# n", "foo='x'", "é",
    "\x00", "wait()", "wait(", "click(start_box='(1,2)", "type(content='", "Action: ", "\nAction: ", "Thought: ",
    "start_box=",
]  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)).filter(
    lambda text: "\\" not in text
)
CALLS_INSIDE = re.compile(r"""['"]\s*,?\s*\)[^\S\n]*(\n|#.*\n)[\s\S]*\w\(""")
"""A text that holds the end of a call, a newline and the beginning of another is, quotes and all, two calls."""
POSITION_INSIDE = re.compile(r"""['"]\s*,\s*(start_|end_)?(box|point)\s*=\s*['"(\[<]""")
"""A text may hold the end of a text and a position; but so do training examples."""


@settings(max_examples=300)
@given(texts, st.sampled_from("'\""), st.sampled_from(["", "Thought: so\n"]))
@example("print('a')  # note", "'", "")
@example("a') # b", "'", "")
@example("a')\n# b", "'", "Thought: so\n")
@example("it's 'a')\n# b", "'", "")
@example("a') Action: wait() #", "'", "")
@example("Action: type(content='", "'", "")
@example("=#', start_box=').", "'", "")
@example("", '"', "")
@example("a\nAction: type(content='b", "'", "Thought: so\n")
@example("a\nAction: type(content='')b", "'", "Thought: so\n")
def test_a_text_without_escapes_is_whole_or_refused(text, quote, before):
    if CALLS_INSIDE.search(text) or POSITION_INSIDE.search(text):
        return
    try:
        parsed = parse_response(f"{before}Action: type(content={quote}{text}{quote})")
    except ActionParseError:
        return
    assert parsed.actions == (TypeText(text),)


@settings(max_examples=100)
@given(texts, texts, st.sampled_from("'\""))
def test_a_comment_changes_no_text(text, comment, quote):
    if CALLS_INSIDE.search(text + "\n") or POSITION_INSIDE.search(text) or quote in comment or "\n" in comment:
        return
    try:
        parsed = parse_response(f"Action: type(content={quote}{text}{quote}) # {comment}")
    except ActionParseError:
        return
    assert parsed.actions in ((TypeText(text),), (TypeText(f"{text}{quote}) # {comment}"),))


@pytest.mark.parametrize(
    "text",
    ["hello", "it's", "a 'b' c", "print('a')", "f('a', b='c')\n", "echo $(date +'%F') # x\n", "", "żółw 你好", ":("],
)
def test_a_plain_text_is_read(text):
    assert parse_response(f"Action: type(content='{text}')").actions == (TypeText(text),)
    assert parse_response(f"Action: finished(content='{text}')").actions == (Finished(text),)


@pytest.mark.parametrize(
    "text",
    ["print('a')  # note", "df.to_csv('a.csv', index=False)\\n", "echo $(date +'%F') # today\\n", "say 'hi' (x)"],
)
def test_no_beginning_of_a_response_types_a_part_that_ends_inside_a_quotation(text):
    whole = f"Action: type(content='{text}')"
    for length in range(len(whole) - 1):
        with pytest.raises(ActionParseError):
            parse_response(whole[:length])


def test_an_error_says_which_text_and_what_to_write():
    with pytest.raises(ActionParseError, match=r"may be a comment or the rest of the typed text; write quotes .* as"):
        parse_response("Action: type(content='a') # b')")
    with pytest.raises(ActionParseError, match=r"the text that starts with .*hello.* has no end"):
        parse_response("Action: type(content='hello")
