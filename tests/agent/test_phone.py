"""The actions of a phone: their records, and both published grammars for them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent import mobile_use
from arpo.agent.actions import Click, CoordinateFrame, Drag, Fail, Finished, Press, Scroll, TypeText, Wait
from arpo.agent.matching import compare
from arpo.agent.phone import Back, Home, LongPress, OpenApp, Swipe
from arpo.agent.prompt import GRAMMARS, Prompt, thought_of
from arpo.agent.ui_tars import parse_action, parse_actions
from arpo.errors import ActionParseError, TaskFormatError
from tests.agent.strategies import phone_actions, plain_text


def called(**arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'mobile_use', 'arguments': arguments})}\n</tool_call>"


@given(phone_actions)
def test_reading_a_record_gives_the_action(action):
    assert parse_action(action.describe()) == action
    assert parse_actions(f"{action.describe()}\nwait()") == (action, Wait())


@pytest.mark.parametrize("name", ["ui_tars_mobile", "mobile_use"])
@given(action=phone_actions, thought=st.one_of(st.just(""), plain_text))
def test_what_is_written_is_read_as_the_same_action_and_thought(name, action, thought):
    text = GRAMMARS[name].render(action, thought, Finished())
    try:
        parsed = GRAMMARS[name].parse(text)
    except ActionParseError:
        assert any("\ud800" <= letter <= "\udfff" for letter in text)  # half a character, which no model writes
        return
    assert (parsed.thought, parsed.actions) == (thought.strip(), (action, Finished()))


@pytest.mark.parametrize(
    ("name", "text", "action"),
    [
        # the lines of the prompt for phones in ui-tars 0.1.4, and those of UI-TARS-desktop's operator by adb
        ("ui_tars_mobile", "Action: click(point='<point>10 20</point>')", Click(10, 20)),
        ("ui_tars_mobile", "Thought: I hold it.\nAction: long_press(point='<point>10 20</point>')", LongPress(10, 20)),
        ("ui_tars_mobile", "Action: scroll(point='<point>1 2</point>', direction='right')", Scroll("right", 1, 2)),
        ("ui_tars_mobile", "Action: open_app(app_name='Maps')", OpenApp("Maps")),
        (
            "ui_tars_mobile",
            "Action: drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')",
            Drag(1, 2, 3, 4),
        ),
        ("ui_tars_mobile", "Action: press_home()", Home()),
        ("ui_tars_mobile", "press_back()", Back()),
        ("ui_tars_mobile", "Action: swipe(start_box='[1, 2, 3, 4]', end_box='[5, 6, 7, 8]')", Swipe(2, 3, 6, 7)),
        # the tool of Qwen's cookbook
        ("mobile_use", called(action="click", coordinate=[935, 406]), Click(935, 406)),
        ("mobile_use", called(action="swipe", coordinate=[5, 8], coordinate2=[5, 2]), Swipe(5, 8, 5, 2)),
        ("mobile_use", called(action="swipe", coordinate=[5, 8], coordinate2=[5, 2], time=1), Swipe(5, 8, 5, 2)),
        ("mobile_use", called(action="long_press", coordinate=[5, 8], time=2), LongPress(5, 8)),
        ("mobile_use", called(action="system_button", button="Back"), Back()),
        ("mobile_use", called(action="system_button", button="home"), Home()),
        ("mobile_use", called(action="system_button", button="Enter"), Press("enter")),
        ("mobile_use", called(action="key", text="volume_up"), Press("volumeup")),
        ("mobile_use", called(action="open", text="Maps"), OpenApp("Maps")),
        ("mobile_use", called(action="type", text="a", coordinate=[1, 2]), TypeText("a")),
        ("mobile_use", called(action="click", coordinate=[1, 2], coordinate2=[], text=""), Click(1, 2)),
        ("mobile_use", called(action="terminate", status="failure"), Fail()),
    ],
)
def test_published_forms_are_read(name, text, action):
    assert GRAMMARS[name].parse(text).actions == (action,)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("ui_tars_mobile", "Action: swipe(start_box='(1,2)')", "missing_argument"),
        ("ui_tars_mobile", "Action: swipe(start_box='(1,2)', end_box='(1,2)', times='3')", "bad_argument"),
        ("ui_tars_mobile", "Action: open_app()", "missing_argument"),
        ("ui_tars_mobile", "Action: pinch()", "unknown_action"),
        ("mobile_use", called(action="swipe", coordinate=[5, 8]), "missing_argument"),
        ("mobile_use", called(action="click"), "missing_argument"),
        ("mobile_use", called(action="click", coordinate=[1, 2], coordinate2=[3, 4]), "bad_argument"),
        ("mobile_use", called(action="click", coordinate=[1, 2], text="a"), "bad_argument"),
        ("mobile_use", called(action="system_button", button="Power"), "bad_argument"),
        ("mobile_use", called(action="key", text="nokey"), "bad_argument"),
        ("mobile_use", called(action="left_click", coordinate=[1, 2]), "unknown_action"),
        ("mobile_use", called(action="click", coordinate=[1, 2]).replace("mobile", "phone"), "bad_call"),
        ("ui_tars", "Action: press_back()", "unknown_action"),
    ],
)
def test_what_is_malformed_is_named(name, text, kind):
    with pytest.raises(ActionParseError) as refused:
        GRAMMARS[name].parse(text)
    assert refused.value.kind == kind


@pytest.mark.parametrize("action", [Swipe(1, 2, 3, 4), LongPress(1, 2), OpenApp("Maps"), Back(), Home()], ids=str)
@pytest.mark.parametrize("name", ["ui_tars", "computer_use", "computer_use_xml"])
def test_a_grammar_of_desktops_has_no_words_for_them(name, action):
    with pytest.raises(TaskFormatError, match="choose another prompt"):
        GRAMMARS[name].answer(action)
    for other in (Click(1, 2, button="right"), Click()):
        with pytest.raises(ValueError, match="no action for"):
            GRAMMARS["mobile_use"].render(other)


def test_both_ends_of_a_swipe_are_moved_to_the_screen_and_compared():
    swipe = Swipe(100, 400, 900, 50)
    assert CoordinateFrame(2000, 1500, 1000, 500).to_screen(swipe) == Swipe(200, 1200, 1800, 150)
    assert compare(swipe, Swipe(104, 400, 900, 54), tolerance=5).exact
    assert not compare(swipe, Swipe(100, 400, 900, 60), tolerance=5).point
    assert not compare(swipe, Drag(100, 400, 900, 50), tolerance=5).kind
    assert not compare(OpenApp("a"), OpenApp("b"), tolerance=5).text


def test_the_prompts_name_the_actions_of_their_grammars():
    published = pytest.importorskip("ui_tars.prompt").MOBILE_USE_DOUBAO.replace("{language}", "English")
    assert Prompt.ui_tars_mobile().template == published
    tool = json.loads(Prompt.mobile_use().system.split("<tools>\n")[1].split("\n</tools>")[0])["function"]
    assert tool["name"] == mobile_use.PHONE.name
    given_names = {name for rule in mobile_use.PHONE.rules.values() for name in rule.arguments}
    assert set(tool["parameters"]["properties"]) == given_names | {"action", "time"}
    assert set(tool["parameters"]["properties"]["action"]["enum"]) == set(mobile_use.PHONE.rules)
    for prompt in (Prompt.ui_tars_mobile(), Prompt.mobile_use(), Prompt.compact(grammar="ui_tars_mobile")):
        assert thought_of(GRAMMARS[prompt.grammar].render(Back(), "I go back.")) == "I go back."
