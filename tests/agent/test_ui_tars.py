"""UI-TARS's grammar: what it reads and refuses beside `test_answers.py`, in which time, and how it writes."""

import contextlib
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arpo.agent.actions import Click, Drag, Fail, Finished, Hotkey, KeyDown, Press, Scroll, TypeText, Wait
from arpo.agent.prompt import GRAMMARS
from arpo.agent.pyautogui import to_pyautogui
from arpo.agent.response import MAX_CHARACTERS, ParseErrorKind
from arpo.agent.ui_tars import parse_action, parse_actions, parse_response, render_response
from arpo.errors import ActionParseError
from tests.agent import strategies
from tests.agent.corpus import read

DEFECTS = [
    ("press(key='enter')", Press("enter"), "an unbound local, so always a format error"),
    ("drag(start_box='(1,2)')", "missing_argument", "does nothing"),
    ("click()", "missing_argument", "an error without a name"),
    ("hotkey(key='ctrl+z')", Hotkey(("ctrl", "z")), "is one key"),
    ("finish()", "unknown_action", "does nothing"),
    ("__import__(name='os')", "unknown_action", "does nothing"),
    ("click(start_box='(1,2)'); import os", "bad_syntax", "is Python"),
    ("foo", "bad_syntax", "is Python"),
    ("[click(start_box='(1,2)')]", "bad_syntax", "is Python"),
    ("click(start_box='(1,2)')\n\nfinished()", (Click(1, 2), Finished()), "ends, and does not click"),
    ("wait()\n\nerror_env()", (Wait(), Fail()), "ends, and does not wait"),
    ("click(start_box='(1,2)')\ntype(content='x')", (Click(1, 2), TypeText("x")), "types the first action's source"),
    ("type(content='a\nb')", TypeText("a\nb"), "an unterminated string"),
    (r"type(content='a\nb')", TypeText("a\nb"), "an unterminated string"),
    (r"type(content='C:\\')", TypeText("C:\\"), "an unterminated string"),
    (r"type(content='a\\nb')", TypeText(r"a\nb"), "types `a` and presses Enter"),
    ("type(content='a\n\nb')", TypeText("a\n\nb"), "are two actions"),
    ('finished(content="hello")', Finished("hello"), "is its own source"),
]
"""The defects of the official parser (`reference/arpo.md` §1.5), with what it does there: all are absent here."""


@pytest.mark.parametrize(("call", "expected", "there"), DEFECTS)
def test_no_defect_of_the_official_parser_is_here(call, expected, there):
    assert read(f"Thought: I act.\nAction: {call}") == expected, there
    if isinstance(expected, TypeText):
        compile(to_pyautogui(expected), "guest", "exec")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("  click ( start_box = '(1,2)' , )  ", Click(1, 2)),
        ("select(end_box='(3,4)', start_box='(1,2)')", Drag(1, 2, 3, 4)),
        ("press(key=' ')", Press("space")),
        (r"press(key='\n')", Press("enter")),
        ("press(key=' a ')", Press("a")),
        ("keydown(key='shift')", KeyDown("shift")),
        ("scroll(start_box='', direction=' LEFT ')", Scroll("left")),
        ("wait() #Sleep for 5s and take a screenshot to check for any changes.", Wait()),
        ("finished()", Finished()),
    ],
)
def test_space_order_and_comments_change_nothing(text, action):
    assert parse_action(text) == action
    assert read(f"Action: {text}") == action


POSITIONS = """
    '(10,20)' | "(10, 20)" | '<|box_start|>(10,20)<|box_end|>' | <|box_start|>(10,20)<|box_end|> | '[10,20]' | '10 20'
    '10, 20' | '(10 20)' | '<point>10 20</point>' | <point>10 20</point> | (10,20) | [10, 20] | '(10.0,2e1)'
    '(5,15,15,25)' | '<|box_start|>(5,15),(15,25)<|box_end|>' | '[[5, 15], [15, 25]]' | '<bbox>5 15 15 25</bbox>'
"""
"""Points, and boxes around them: ((5 + 15) / 2, (15 + 25) / 2)."""
NO_POSITIONS = """
    '(10)' | '(10,20,30)' | '(10,20,30,40,50)' | '(nan,20)' | '(inf,20)' | '(1e999,20)' | '(100001,20)' | '(1_0,20)'
    '(\u0661,20)' | '(a,20)' | '(1-2,20)' | '(10,,20)' | '()' | '<|box_start|>(10,20)' | ((10,20),(30,40),(50,60))
    [a] | <point></point> | '<point>100 200 300 400' | '100 200 300 400</point>'
"""
"""Among them an Arabic digit, which float() would take, and tags that hide how much of the text is the position."""


def cells(table: str) -> list[str]:
    return re.split(r" \| |\n +", table.strip())


@pytest.mark.parametrize("box", cells(POSITIONS))
def test_a_position_may_be_written_in_many_ways(box):
    assert parse_action(f"click(start_box={box})") == Click(10, 20)
    assert parse_action(f"click(point={box})") == Click(10, 20)
    assert parse_action(f"drag(start_point={box}, end_point={box})") == Drag(10, 20, 10, 20)


@pytest.mark.parametrize("box", [*cells(NO_POSITIONS), f"'({'9' * 500},20)'"])
def test_what_is_not_a_position_is_a_bad_box(box):
    assert read(f"Action: click(start_box={box})") == "bad_box"


BAD_RESPONSES = {
    "empty": [""],
    "too_long": ["x" * (MAX_CHARACTERS + 1)],
    "no_action": ["Thought: I do not know."],
    "bad_syntax": [
        "Action: I will click.", "Action: click(start_box=1)", "Action: click(start_box='(1,2)') wait()",
        "Action: type(content='a') hotkey(key='enter')", "Action: type(content='a)\nclick(start_box='(1,2)')",
        "Action: wait()\nThat is all.", "Action: a.click(start_box='(1,2)')",
    ],
    "missing_argument": ["Action: scroll(start_box='(1,2)')", "Action: type()", "Action: hotkey(key='')"],
    "bad_argument": [
        "Action: scroll(start_box='(1,2)', direction='sideways')", "Action: type(content=(1,2))",
        "Action: press(key='é')", "Action: hotkey(key='" + "a+" * 100 + "')",
    ],
    "bad_box": ["Action: click(start_box='here')"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for kind, texts in BAD_RESPONSES.items() for text in texts])
def test_a_bad_response_is_an_error_of_a_known_kind(text, kind):
    assert read(text) == kind


@pytest.mark.parametrize("separator", ["\n\n", "\n", "\r\n", "\n \n\t\n", " # then\n"])
def test_a_response_may_hold_as_many_actions_as_are_allowed_and_a_call_is_one(separator):
    calls = separator.join(["click(start_box='(1,2)')", "type(content='a\n\nb')", "wait()"])
    response, found = f"Thought: three\nAction: {calls}", (Click(1, 2), TypeText("a\n\nb"), Wait())
    assert GRAMMARS["ui_tars"].read(response, (), max_actions=3) == parse_response(response).actions == found
    with pytest.raises(ActionParseError, match="has 3 actions, more than max_actions=2") as caught:
        GRAMMARS["ui_tars"].read(response, (), max_actions=2)
    assert caught.value.kind == ParseErrorKind.TOO_LONG
    assert parse_actions(calls) == found
    with pytest.raises(ActionParseError, match="expected one action, got 3"):
        parse_action(calls)
    with pytest.raises(ActionParseError) as caught:
        parse_action("x" * (MAX_CHARACTERS + 1))
    assert caught.value.kind == "too_long"


@pytest.mark.parametrize(("call", "what"), [("hotkey", "hotkey"), ("press", "key"), ("keydown", "key")])
def test_a_key_has_at_most_a_hundred_characters(call, what):
    with pytest.raises(ActionParseError, match=f"the {what} has 101 characters, more than 100"):
        parse_action(f"{call}(key='{'a' * 101}')")
    with pytest.raises(ActionParseError, match="unknown key"):
        parse_action(f"{call}(key='{'a' * 100}')")


TYPED_PIECES = [
    *"'\"()[]#,= \n\tab.:;$", "it's", "print('a')", "')", "') ", "')\n", "', ", "') # ", "\r\n", "# n", "foo='x'", "é",
    "\x00", "wait()", "wait(", "click(start_box='(1,2)", "type(content='", "Action: ", "\nAction: ", "Thought: ",
    "start_box=",
]  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(TYPED_PIECES), max_size=12).map("".join)).filter(
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


def test_a_plain_text_is_read_and_an_error_says_which_text_and_what_to_write():
    for text in ("hello", "f('a', b='c')\n", "echo $(date +'%F') # x\n", "", "żółw 你好"):
        assert parse_response(f"Action: type(content='{text}')").actions == (TypeText(text),)
        assert parse_response(f"Action: finished(content='{text}')").actions == (Finished(text),)
    with pytest.raises(ActionParseError, match=r"may be a comment or the rest of the typed text; write quotes .* as"):
        parse_response("Action: type(content='a') # b')")
    with pytest.raises(ActionParseError, match=r"the text that starts with .*hello.* has no end"):
        parse_response("Action: type(content='hello")


@pytest.mark.parametrize(
    "text",
    ["print('a')  # note", "df.to_csv('a.csv', index=False)\\n", "echo $(date +'%F') # today\\n", "say 'hi' (x)"],
)
def test_no_beginning_of_a_response_types_a_part_that_ends_inside_a_quotation(text):
    whole = f"Action: type(content='{text}')"
    for length in range(len(whole) - 1):
        with pytest.raises(ActionParseError):
            parse_response(whole[:length])


PIECES = [
    "(", "'", "\\", "')", "', a=", "') a(", " ", "#", "a(", "\nAction:", "type(content='a\n", "click(start_box='",
    "<|box_start|>", "it's')\n", "')\n#')\n\n", "', point='(1,", "('", "\nAction: type(content='", "call(function='",
]  # fmt: skip
CALLED = [
    "</think>", '<tool_call>{"a": "</think>', "<function=a><parameter=b></think>", "{", "{'a':", "'a' ", "\\",
]  # fmt: skip


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
    for piece in CALLED:
        start = time.process_time()
        with contextlib.suppress(ActionParseError):
            GRAMMARS[grammar].parse(opening + piece * (500_000 // len(piece)) + "</think>")
        assert time.process_time() - start < 5, piece


def test_a_million_characters_and_brackets_without_end_are_read_or_refused():
    text = "it's (fine) " * 80_000
    assert parse_response(f"Action: type(content='{text}')").actions == (TypeText(text),)
    for deep in ("(" * 100_000, "[" * 100_000, "('" * 100_000, "(" * 100_000 + ")" * 100_000):
        for call in ("click(start_box={})", "click(start_box='{}')", "type(content='it's{}", "hover{}"):
            with pytest.raises(ActionParseError):
                parse_response(f"Action: {call.format(deep)}")


@given(strategies.any_action, strategies.texts)
@example(TypeText("Action: wait()"), "Action: wait()\nAction: click")
@example(TypeText("\nAction: type(content='"), "Reflection: x")
@example(Scroll("up"), "0\nAction:0(content='")
def test_reading_a_rendered_response_gives_thought_and_action(action, thought):
    try:
        text = render_response(action, thought)
    except ValueError:
        assert "Action" in thought
        return
    parsed = parse_response(text)
    assert parsed.actions == (action,)
    assert parsed.thought == thought.strip()


def test_a_thought_stands_before_the_action_unless_it_would_be_read_for_it():
    assert render_response(Wait()) == "Action: wait()"
    assert render_response(Wait(), " Think.\n") == "Thought: Think.\nAction: wait()"
    assert render_response(Wait(), "Action: click").startswith("Thought: Action: click\n")
    with pytest.raises(ValueError, match="must hold no call that could be read for the action"):
        render_response(Scroll("up"), "0\nAction:0(content='")
