import pytest

from arpo.agent.actions import (
    CallUser,
    Click,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    MiddleClick,
    Press,
    RightClick,
    Scroll,
    TypeText,
    Wait,
)
from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.parser import MAX_CHARACTERS, parse_action, parse_actions, parse_response
from arpo.errors import ActionParseError


def kind_of(text: str) -> str:
    with pytest.raises(ActionParseError) as caught:
        parse_response(text)
    assert caught.value.kind in list(ParseErrorKind)
    return caught.value.kind


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click(start_box='(966,546)')", Click(966, 546)),
        ("left_single(start_box='(966,546)')", Click(966, 546)),
        ("left_double(start_box='(1,2)')", DoubleClick(1, 2)),
        ("right_single(start_box='(1,2)')", RightClick(1, 2)),
        ("middle_click(start_box='(1,2)')", MiddleClick(1, 2)),
        ("hover(start_box='(1,2)')", Hover(1, 2)),
        ("drag(start_box='(1,2)', end_box='(3,4)')", Drag(1, 2, 3, 4)),
        ("select(end_box='(3,4)', start_box='(1,2)')", Drag(1, 2, 3, 4)),
        ("hotkey(key='ctrl c')", Hotkey(("ctrl", "c"))),
        ("hotkey(hotkey='ctrl c')", Hotkey(("ctrl", "c"))),
        ("press(key='enter')", Press("enter")),
        ("press(key=' ')", Press("space")),
        (r"press(key='\n')", Press("enter")),
        ("press(key=' a ')", Press("a")),
        ("keydown(key='shift')", KeyDown("shift")),
        ("keyup(key='shift')", KeyUp("shift")),
        ("type(content='hello')", TypeText("hello")),
        ("type(content='')", TypeText("")),
        ("scroll(start_box='(1,2)', direction='up')", Scroll("up", 1, 2)),
        ("scroll(direction='down')", Scroll("down")),
        ("scroll(start_box='', direction=' LEFT ')", Scroll("left")),
        ("scroll(direction='right')", Scroll("right")),
        ("wait()", Wait()),
        ("wait() #Sleep for 5s and take a screenshot to check for any changes.", Wait()),
        ("finished()", Finished()),
        ("finished(content='all done')", Finished("all done")),
        ("call_user()", CallUser()),
        ("error_env()", Fail()),
        ("  click ( start_box = '(1,2)' , )  ", Click(1, 2)),
    ],
)
def test_every_action_of_the_grammar_is_read(text, action):
    assert parse_action(text) == action
    assert parse_response(f"Action: {text}").actions == (action,)


@pytest.mark.parametrize(
    "box",
    [
        "'(10,20)'",
        '"(10, 20)"',
        "'<|box_start|>(10,20)<|box_end|>'",
        "<|box_start|>(10,20)<|box_end|>",
        "'[10,20]'",
        "'10 20'",
        "'10, 20'",
        "'(10 20)'",
        "'<point>10 20</point>'",
        "<point>10 20</point>",
        "(10,20)",
        "[10, 20]",
        "'(10.0,2e1)'",
        "'(5,15,15,25)'",  # centre: ((5 + 15) / 2, (15 + 25) / 2)
        "'<|box_start|>(5,15),(15,25)<|box_end|>'",
        "'[[5, 15], [15, 25]]'",
        "'<bbox>5 15 15 25</bbox>'",
    ],
)
def test_a_position_may_be_written_in_many_ways(box):
    assert parse_action(f"click(start_box={box})") == Click(10, 20)
    assert parse_action(f"click(point={box})") == Click(10, 20)
    assert parse_action(f"drag(start_point={box}, end_point={box})") == Drag(10, 20, 10, 20)


@pytest.mark.parametrize(
    "box",
    [
        "'(10)'",
        "'(10,20,30)'",
        "'(10,20,30,40,50)'",
        "'(nan,20)'",
        "'(inf,20)'",
        "'(1e999,20)'",
        "'(100001,20)'",
        "'(1_0,20)'",
        "'(\u0661,20)'",  # an Arabic digit, which float() would take
        "'(a,20)'",
        "'(1-2,20)'",
        "'(10,,20)'",
        "'()'",
        "'<|box_start|>(10,20)'",
        "'(" + "9" * 500 + ",20)'",
        "((10,20),(30,40),(50,60))",
        "[a]",
        "<point></point>",
        "'<point>100 200 300 400'",  # a tag that was not closed hides how much of the text is the position
        "'100 200 300 400</point>'",
    ],
)
def test_what_is_not_a_position_is_a_bad_box(box):
    assert kind_of(f"Action: click(start_box={box})") == "bad_box"


@pytest.mark.parametrize("separator", ["\n\n", "\n", "\r\n", "\n \n\t\n", " # then\n"])
def test_a_response_may_hold_several_actions(separator):
    calls = ["click(start_box='(1,2)')", "type(content='a\n\nb')", "wait()"]
    parsed = parse_response("Thought: three\nAction: " + separator.join(calls))
    assert parsed.actions == (Click(1, 2), TypeText("a\n\nb"), Wait())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("x" * (MAX_CHARACTERS + 1), "too_long"),
        ("Thought: I do not know.", "no_action"),
        ("Action: # nothing", "no_action"),
        ("Action: click", "bad_syntax"),
        ("Action: I will click.", "bad_syntax"),
        ("Action: click(start_box=1)", "bad_syntax"),
        ("Action: click(start_box='(1,2)') wait()", "bad_syntax"),
        ("Action: type(content='a') hotkey(key='enter')", "bad_syntax"),
        ("Action: type(content='a)\nclick(start_box='(1,2)')", "bad_syntax"),
        ("Action: wait()\nThat is all.", "bad_syntax"),
        ("Action: a.click(start_box='(1,2)')", "bad_syntax"),
        ("Action: scroll(start_box='(1,2)')", "missing_argument"),
        ("Action: scroll(start_box='(1,2)', direction='')", "missing_argument"),
        ("Action: type()", "missing_argument"),
        ("Action: hotkey(key='')", "missing_argument"),
        ("Action: press()", "missing_argument"),
        ("Action: scroll(start_box='(1,2)', direction='sideways')", "bad_argument"),
        ("Action: scroll(start_box='(1,2)', direction='down or up')", "bad_argument"),
        ("Action: type(content=(1,2))", "bad_argument"),
        ("Action: press(key='foo')", "bad_argument"),
        ("Action: press(key='é')", "bad_argument"),
        ("Action: hotkey(key='ctrl+foo')", "bad_argument"),
        ("Action: hotkey(key='" + "a+" * 100 + "')", "bad_argument"),
        ("Action: click(start_box='here')", "bad_box"),
    ],
)
def test_a_bad_response_is_an_error_of_a_known_kind(text, kind):
    assert kind_of(text) == kind


def test_more_actions_than_allowed_are_refused_and_none_is_left_out():
    two = "Action: wait()\nwait()"
    assert parse_response(two, max_actions=2).actions == parse_response(two).actions == (Wait(), Wait())
    with pytest.raises(ActionParseError, match="has 2 actions, more than max_actions=1") as caught:
        parse_response(two, max_actions=1)
    assert caught.value.kind == ParseErrorKind.TOO_LONG
    assert parse_actions("wait()\nwait()") == (Wait(), Wait())


def test_one_action_is_one_action():
    with pytest.raises(ActionParseError, match="expected one action, got 2"):
        parse_action("wait()\nwait()")
    with pytest.raises(ActionParseError) as caught:
        parse_action("x" * (MAX_CHARACTERS + 1))
    assert caught.value.kind == "too_long"


@pytest.mark.parametrize(("call", "what"), [("hotkey", "hotkey"), ("press", "key"), ("keydown", "key")])
def test_a_key_has_at_most_a_hundred_characters(call, what):
    with pytest.raises(ActionParseError, match=f"the {what} has 101 characters, more than 100"):
        parse_action(f"{call}(key='{'a' * 101}')")
    with pytest.raises(ActionParseError, match="unknown key"):
        parse_action(f"{call}(key='{'a' * 100}')")
