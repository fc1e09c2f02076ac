"""Calls of functions: how they are written, what fits, and what a prompt says of them."""

import pytest

from arpo.agent.actions import Call, Click, TypeText, Wait
from arpo.agent.functions import LONGEST_TEXT, Function, refusal
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_action, parse_actions, parse_response
from arpo.errors import ActionParseError

WRITE = Function("files.write", {"path": "str", "text": "str"}, "Write a file.")
SCALE = Function("view.scale", {"by": "float", "times": "int", "smooth": "bool"}, "Scale the view.")
BOTH = (WRITE, SCALE)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("call(function='f')", Call("f")),
        ("call( function = 'f' , )", Call("f")),
        ('call(text="a\\nb", function="f")', Call("f", {"text": "a\nb"})),
        (r"call(function='f', text='it\'s (a), b=\'c\'')", Call("f", {"text": "it's (a), b='c'"})),
        ("call(function='f', text='two\nlines')", Call("f", {"text": "two\nlines"})),
        (
            "call(function='f', a=3, b=-0.5, c=1e-07, d=true, e=False)",
            Call("f", {"a": 3, "b": -0.5, "c": 1e-7, "d": True, "e": False}),
        ),
        ("call(function='f', a='3', b='true')", Call("f", {"a": "3", "b": "true"})),
        # too long for a whole number
        ("call(function='f', a=1234567890123456)", Call("f", {"a": 1234567890123456.0})),
        # names that mean something elsewhere are names like any other
        (
            "call(function='f', button='right', start_box='(1,2)', content=4) # so",
            Call("f", {"button": "right", "start_box": "(1,2)", "content": 4}),
        ),
    ],
)
def test_a_call_is_read_as_it_is_written(text, call):
    (found,) = parse_actions(text)
    assert found == call
    assert [type(value) for value in found.arguments.values()] == [type(value) for value in call.arguments.values()]


MALFORMED = {
    "bad_call": [
        "call()", "call(path='a')", "call(function='')", "call(function=f)", "call(function='f', a=b)",
        "call(function='f', a=[1, 2])", "call(function='f', a=nan)", "call(function='f', a=1e999)",
        "call(function='f', a=٣)",
    ],
    "bad_argument": ["call(function='f', a='b', a='c')"],
    "bad_syntax": [
        "call('f')", "call(function='f', 3)", "call(function='f', text='it's')",
        "call(function='f', text='print('a')')", "call(function='f', text='print('a')  # note')",
        "call(function='f', text='a') # note')", "call(function='f', text='a", "call(function='f', a=12",
        "call(function='f', text='a'", "call(function='f', text='a'\nwait()",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for kind, texts in MALFORMED.items() for text in texts])
def test_a_call_that_is_written_badly_is_refused(text, kind):
    with pytest.raises(ActionParseError) as error:
        parse_response(f"Action: {text}")
    assert error.value.kind == kind


def test_a_call_stands_among_other_actions():
    text = "click(start_box='(1,2)')\ncall(function='f')\n\ntype(content='a')"
    assert parse_actions(text) == (Click(1, 2), Call("f"), TypeText("a"))
    assert len({Call("f", {"a": 1}), Call("f", {"a": 1}), Call("g"), Wait()}) == 3  # hashable as all of them are
    # a label in a text that goes wrong begins no other action
    with pytest.raises(ActionParseError, match="bare quote"):
        parse_response("Action: call(function='f', text='it's\nAction: wait()")
    response = "Thought: I write.\nAction: call(function='f', text='a\nAction: wait()')"
    assert parse_response(response).actions == (Call("f", {"text": "a\nAction: wait()"}),)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (Call("files.write", {"path": "a", "text": ""}), ""),
        (Call("files.write", {"text": "a" * LONGEST_TEXT, "path": "b"}), ""),
        (Call("view.scale", {"by": 2, "times": 3, "smooth": False}), ""),
        (Call("files.delete"), "there is no function 'files.delete'"),
        (Call("files.write"), "files.write takes path, text, got nothing"),
        (Call("files.write", {"path": "a", "text": "b", "mode": "c"}), "files.write takes path, text, got mode, path"),
        (Call("files.write", {"path": "a", "text": 3}), "files.write: text must be a str, is a int"),
        (Call("files.write", {"path": "a\0", "text": ""}), "files.write: path holds what is no text"),
        (Call("files.write", {"path": "a", "text": "\ud800"}), "files.write: text holds what is no text"),
        (Call("files.write", {"path": "a", "text": "a" * 10_001}), "files.write: text has 10001 characters"),
        (Call("view.scale", {"by": True, "times": 3, "smooth": False}), "view.scale: by must be a float, is a bool"),
        (Call("view.scale", {"by": 1.5, "times": True, "smooth": False}), "view.scale: times must be a int"),
        (Call("view.scale", {"by": 1.5, "times": 3, "smooth": 1}), "view.scale: smooth must be a bool"),
    ],
)
def test_a_call_fits_a_function_or_is_refused_with_the_reason(call, said):
    assert refusal(call, BOTH).startswith(said)
    assert bool(refusal(call, BOTH)) == bool(said)
    assert refusal(call, ())


@pytest.mark.parametrize("name", ["ui_tars", "official", "compact"])
def test_a_prompt_lists_functions_where_there_are_some_and_is_the_same_where_there_are_none(name):
    make = getattr(Prompt, name)
    bare, listing = make(), make(functions=BOTH)
    lines = [str(function) for function in BOTH]
    assert make(functions=()) == bare
    assert (listing.system, listing.screenshot_apart) == (bare.system, bare.screenshot_apart)
    assert listing.template.replace("\n".join(lines) + "\n", "") == bare.template
    assert lines[0] == "call(function='files.write', path='xxx', text='xxx') # Write a file."
    for line in lines:  # what the prompt shows is a call that fits
        assert refusal(parse_action(line), BOTH) == ""
    if name != "compact":  # they are the last lines of the action space
        space = listing.template.split("## Action Space\n\n")[1].split("\n\n## Note\n")[0].splitlines()
        assert [line.partition("(")[0] for line in space[-3:]] == ["finished", "call", "call"]
