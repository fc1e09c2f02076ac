"""The contract of every grammar: action to text and back, and of any text actions or a typed error."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent import actions
from arpo.agent.actions import CoordinateFrame
from arpo.agent.functions import Function
from arpo.agent.grammar import GRAMMARS, thought_of
from arpo.agent.prompt import Prompt
from arpo.agent.pyautogui import to_pyautogui
from arpo.agent.response import ParseErrorKind
from arpo.errors import ActionParseError, ConfigError, TaskFormatError
from tests.agent.strategies import any_action, calls, plain_text

FRAME = CoordinateFrame(1920, 1080, 1000, 1000)
FRAGMENTS = [
    *'{}[]":,\\ \n\t.0123456789-+eE\x00é你🐢', "<tool_call>", "</tool_call>", "<tool_call>\n", "null", "true",
    "NaN", "Infinity", "1e999", "\\ud800", "\\u0000", '"action"', '"coordinate"', '"keys": ["ctrl"', "computer_use",
    '"name"', '"arguments": {', "Action: ", "click(start_box='(1,2)')", "</think>", "9" * 50,
    "<function=computer_use>", "</function>", "<parameter=action>", "</parameter>", "<parameter=keys>", "['ctrl'",
]  # fmt: skip


UI_TARS_CALLS = [
    "click(start_box='(966,546)')",
    "left_double(start_box='<|box_start|>(1,2)<|box_end|>')",
    "right_single(point='<point>3 4</point>')",
    "hover(start_box=[5, 6])",
    "drag(start_box='(1,2)', end_box='(3,4,5,6)')",
    "scroll(start_box='(1,2)', direction='left')",
    "hotkey(key='ctrl+shift+t')",
    "press(key='enter')",
    "keydown(key='shift')",
    "keyup(key='a')",
    "type(content='it\\'s \"so\"\\n')",
    'type(content="żółw\n\n你好")',
    "wait() # a moment",
    "finished(content='done')",
    "call_user()",
    "error_env()",
    "type(content='print('a')  # note')",
    "type(content='df.to_csv('a.csv', index=False)\n')",
    "type(text='it's', start_box='(1,2)')",
    "wait(time=2)",
    "release(key='ctrl+ page down')",
    "click(start_box='（１，２')",
    "call(function='files.write', path='a', text='it\\'s', n=-3, all=true)",
]
UI_TARS_FRAGMENTS = [
    *"()[]{}'\"\\,=<>#\n\r\t +-.:;0123456789eE_%\x00\x1b\u2028é你🐢\ud800",
    "nan", "inf", "1e999", "-0", "<|box_start|>", "<|box_end|>", "<point>", "</point>", "<|im_end|>", "Thought:",
    "Action:", "\nAction: ", "Reflection:", "Action_Summary:", "start_box=", "end_box=", "content='", "')", "key='",
    "direction=", "__import__('os')", "lambda: 0", "\\x41", "\\N{DASH}", "'''", '"""', "\n\n", "ctrl", "+-+-",
    "9" * 50, "')", "') #", "')\n", "', point='(1,2)", "', b='", "Action：", "</Output>", "```", "wait(",
]  # fmt: skip


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice(UI_TARS_FRAGMENTS) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randint(1, 5) :]
            case 2:
                text = text[:at] + text[at + 1 : at + 10][::-1] + text[at + 10 :]
            case 3:
                text = text[:at]
    return text


def of_ui_tars(rng: random.Random) -> str:
    """An answer of UI-TARS, and often a broken one."""
    if rng.random() < 0.2:
        return "".join(rng.choices(UI_TARS_FRAGMENTS + UI_TARS_CALLS, k=rng.randint(0, 30)))
    header = rng.choice(("", "Thought: I click.\n", "Reflection: no. Action_Summary: yes. ", "Action_Summary: so\n"))
    separator = rng.choice(("\n\n", "\n", "; ", " "))
    return mutated(f"{header}Action: {separator.join(rng.choices(UI_TARS_CALLS, k=rng.choice((1, 1, 1, 2, 3))))}", rng)


def sampled(rng: random.Random) -> str:
    """A response of any grammar, with some characters and fragments put in, taken out or turned."""
    kinds = [
        actions.Click(1, 2), actions.Drag(1, 2, 3, 4), actions.Scroll("up", 5, 6), actions.Hotkey(("ctrl", "c")),
        actions.TypeText("it's \"so\"\n</tool_call>"), actions.Wait(), actions.Finished("done"), actions.Fail(),
        actions.Call("f", {"a": 1}),
    ]  # fmt: skip
    write = rng.choice(list(GRAMMARS.values())).render
    text = "\n".join(write(rng.choice(kinds), rng.choice(("", "I see."))) for _ in range(rng.choice((1, 1, 2))))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        cut = rng.choice((0, 0, 1, 5, len(text)))
        text = text[:at] + rng.choice(["", *FRAGMENTS]) + text[at + cut :]
    return text


@pytest.mark.parametrize(
    ("name", "write", "count"), [("ui_tars", of_ui_tars, 20_000), *((name, sampled, 5_000) for name in GRAMMARS)]
)
def test_whatever_a_model_writes_is_actions_or_a_typed_error(name, write, count):
    rng, outcomes = random.Random(20261127), Counter[str]()
    for _ in range(count):
        try:
            found = GRAMMARS[name].parse(write(rng)).actions
        except ActionParseError as error:
            outcomes[ParseErrorKind(error.kind)] += 1
            continue
        assert found
        outcomes["actions"] += 1
        if outcomes["actions"] % (count // 1_000) == 0:
            for action in found:  # what was read can also be recorded and performed
                action.describe()
                compile(to_pyautogui(FRAME.to_screen(action)), "guest", "exec")
    assert outcomes["actions"] > count // 20
    assert len(outcomes) >= 6
    if write is of_ui_tars:  # every kind but the one that a million characters need
        assert outcomes["actions"] > count // 5
        assert set(outcomes) == {"actions", *ParseErrorKind} - {ParseErrorKind.TOO_LONG}


@pytest.mark.parametrize("name", GRAMMARS)
@given(action=st.one_of(any_action, calls), thought=st.one_of(st.just(""), plain_text))
def test_what_is_written_is_read_as_the_same_action_and_thought(name, action, thought):
    try:
        text = GRAMMARS[name].render(action, thought)
    except ValueError:
        return  # the grammar has no words for it
    given = action.arguments if isinstance(action, actions.Call) else {}
    functions = [Function(action.function, {key: type(given[key]).__name__ for key in given}, "")] if given else []
    try:
        parsed, read = GRAMMARS[name].parse(text), GRAMMARS[name].read(text, functions)
    except ActionParseError:
        assert any("\ud800" <= letter <= "\udfff" for letter in text)  # half a character, which no model writes
        return
    wanted = actions.Hotkey((action.key,)) if name != "ui_tars" and isinstance(action, actions.Press) else action
    assert read == (wanted,)
    assert parsed.thought == thought.strip()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_response_of_several_actions_is_read_as_these(name):
    several = (actions.Click(1, 2), actions.TypeText("it's"), actions.Drag(1, 2, 3, 4), actions.Finished())
    parsed = GRAMMARS[name].parse(GRAMMARS[name].render(several[0], "I see.", *several[1:]))
    assert (parsed.thought, parsed.actions) == ("I see.", several)


@pytest.mark.parametrize("action", [actions.KeyDown("ctrl"), actions.KeyUp("ctrl"), actions.CallUser()], ids=str)
def test_an_expert_s_answer_that_a_grammar_has_no_words_for_is_named(action):
    with pytest.raises(TaskFormatError, match=r"cannot be written in the prompt's grammar .*choose another prompt"):
        GRAMMARS["computer_use"].answer(action)
    assert GRAMMARS["ui_tars"].answer(action) == GRAMMARS["ui_tars"].render(action)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_thought_is_found_in_whichever_grammar_it_stands(name):
    assert thought_of(GRAMMARS[name].render(actions.Click(1, 2), "I see.")) == "I see."
    assert thought_of("No action at all.") == ""


def test_a_prompt_of_an_unknown_grammar_is_refused():
    with pytest.raises(ConfigError, match=r"grammar must be 'ui_tars', .*, got 'xml'"):
        Prompt("", "{instruction}", grammar="xml")  # type: ignore[arg-type]
