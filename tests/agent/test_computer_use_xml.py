"""Qwen3.5's tool calls: each value as it stands, each malformed answer by name, and the prompt."""

import pytest

from arpo.agent import actions
from arpo.agent.computer_use_xml import parse_response, render_response
from arpo.agent.functions import Function
from arpo.agent.prompt import GRAMMARS
from arpo.agent.response import ParseErrorKind
from arpo.errors import ActionParseError


def call(*parameters: tuple[str, str], name: str = "computer_use") -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def use(action: str, *parameters: tuple[str, str]) -> str:
    return call(("action", action), *parameters)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (use("scroll", ("pixels", "-100")), [actions.Scroll("down")]),
        (use("type", ("text", '[1] "a"\n\n</tool_call> & <b>')), [actions.TypeText('[1] "a"\n\n</tool_call> & <b>')]),
        (use("type", ("text", "\n5\n")), [actions.TypeText("\n5\n")]),
        (
            use("mouse_move", ("coordinate", "[1, 2]")) + "\n" + use("left_click_drag", ("coordinate", "[3, 4]")),
            [actions.Drag(1, 2, 3, 4)],
        ),
        (
            "<tool_call><function=computer_use><parameter=action>left_click</parameter><parameter=coordinate>"
            "[500, 500]</parameter></function></tool_call>",
            [actions.Click(500, 500)],
        ),
        (
            call(("a", "5"), ("b", "five"), ("c", '"5"'), ("d", "true"), ("e", "[1]"), name="app.f"),
            [actions.Call("app.f", {"a": "5", "b": "five", "c": '"5"', "d": "true", "e": "[1]"})],
        ),
        (call(name="f"), [actions.Call("f", {})]),
    ],
)
def test_a_call_is_read_as_the_action_that_it_means(text, found):
    assert list(parse_response(f"I see.\n{text}").actions) == found
    assert parse_response(f"I see.\n{text}").thought == "I see."


LEFT = use("left_click", ("coordinate", "[1, 2]"))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (use("key", ("keys", '["ctrl", "c"')), ParseErrorKind.BAD_ARGUMENT, "keys are no list of names"),
        (use("key", ("keys", "[ctrl, c]")), ParseErrorKind.BAD_ARGUMENT, "keys are no list of names"),
        (use("key", ("keys", '["ctrl"] ["c"]')), ParseErrorKind.BAD_ARGUMENT, "keys must be one list of names"),
        (use("key", ("keys", "ctrl+nokey")), ParseErrorKind.BAD_ARGUMENT, "unknown key"),
        (use("key", ("keys", "a" * 101)), ParseErrorKind.BAD_ARGUMENT, "101 characters"),
        (use("left_click", ("coordinate", "[NaN, 1]")), ParseErrorKind.BAD_BOX, "'NaN' for a number"),
        (use("scroll", ("pixels", "1e9999")), ParseErrorKind.BAD_ARGUMENT, "pixels must be a number"),
        (use("left_click", *[("coordinate", "[1, 2]")] * 2), ParseErrorKind.BAD_ARGUMENT, "coordinate twice"),
        (LEFT.replace("</parameter>\n", "", 1), ParseErrorKind.BAD_SYNTAX, "value of action holds the tag <parameter"),
        (LEFT.replace("</parameter>\n", ""), ParseErrorKind.BAD_SYNTAX, "expected <parameter=name>"),
        (LEFT.replace("</parameter>", "</parameter></parameter>", 1), ParseErrorKind.BAD_SYNTAX, "got '</parameter>"),
        (LEFT.replace("</function>", ""), ParseErrorKind.BAD_SYNTAX, "or </function>, got '</tool_call>'"),
        (LEFT.replace("</function>", "</function></function>"), ParseErrorKind.BAD_SYNTAX, "got '</function>"),
        (LEFT.replace("<function=computer_use>", ""), ParseErrorKind.BAD_SYNTAX, "expected <function=name>"),
        (LEFT.replace("=computer_use", ""), ParseErrorKind.BAD_SYNTAX, "expected <function=name>"),
        (LEFT + "</tool_call>", ParseErrorKind.BAD_SYNTAX, "or none, got '</tool_call>'"),
        (LEFT + LEFT.replace("<function", "<functon"), ParseErrorKind.BAD_SYNTAX, "expected <function=name>"),
        ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', ParseErrorKind.BAD_SYNTAX, "<function=name>"),
    ],
)
def test_what_is_malformed_is_named_and_never_guessed(text, kind, message):
    with pytest.raises(ActionParseError, match=message) as caught:
        parse_response(text)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(
            ("str", text)
            for text in ("5", '"5"', "true", "null", "NaN", "1e5", "", " 5 ", "9" * 5000, '{"a": 1}', "\n")
        ),
        ("int", -5),
        *(("float", number) for number in (1.0, 5, 1e-7, -2.5e22)),
        *(("bool", truth) for truth in (True, False)),
    ],
)
def test_a_value_of_a_function_comes_back_with_the_type_of_its_parameter(kind, value):
    action = actions.Call("f", {"a": value})
    (back,) = GRAMMARS["computer_use_xml"].read(render_response(action), [Function("f", {"a": kind}, "Does.")])
    assert back == action
    assert type(back.arguments["a"]) is type(value)


def test_a_text_that_holds_a_tag_of_a_value_has_no_words():
    with pytest.raises(ValueError, match="must not hold"):
        render_response(actions.TypeText("</parameter>"))
    with pytest.raises(ValueError, match="thought must not hold"):
        render_response(actions.Wait(), "<tool_call>")
