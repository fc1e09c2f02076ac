"""The contract of every grammar: action to text and back, and of any text actions or a typed error."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent import actions
from arpo.agent.coordinates import CoordinateFrame
from arpo.agent.error_kinds import ParseErrorKind
from arpo.agent.functions import Function
from arpo.agent.grammar import GRAMMARS, thought_of
from arpo.agent.prompt import Prompt
from arpo.agent.pyautogui import to_pyautogui
from arpo.agent.render import render
from arpo.errors import ActionParseError, ConfigError, TaskFormatError
from tests.agent.strategies import any_action, calls, plain_text

RESPONSES = 5_000
FRAME = CoordinateFrame(1920, 1080, 1000, 1000)
FRAGMENTS = [
    *'{}[]":,\\ \n\t.0123456789-+eE\x00é你🐢', "<tool_call>", "</tool_call>", "<tool_call>\n", "null", "true",
    "NaN", "Infinity", "1e999", "\\ud800", "\\u0000", '"action"', '"coordinate"', '"keys": ["ctrl"', "computer_use",
    '"name"', '"arguments": {', "Action: ", "click(start_box='(1,2)')", "</think>", "9" * 50,
    "<function=computer_use>", "</function>", "<parameter=action>", "</parameter>", "<parameter=keys>", "['ctrl'",
]  # fmt: skip


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


@pytest.mark.parametrize("name", GRAMMARS)
def test_whatever_a_model_writes_is_actions_or_a_typed_error(name):
    rng, outcomes = random.Random(20261127), Counter[str]()
    for _ in range(RESPONSES):
        text = sampled(rng)
        try:
            parsed = GRAMMARS[name].parse(text)
        except ActionParseError as error:
            outcomes[ParseErrorKind(error.kind)] += 1
            continue
        outcomes["actions"] += 1
        for action in parsed.actions:  # what was read can also be recorded and performed
            render(action).encode()
            compile(to_pyautogui(FRAME.to_screen(action)), "guest", "exec")
    assert outcomes["actions"] > RESPONSES // 20
    assert len(outcomes) >= 6


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
    with pytest.raises(ConfigError, match="grammar must be one of ui_tars, computer_use, computer_use_xml, got 'xml'"):
        Prompt("", "{instruction}", grammar="xml")  # type: ignore[arg-type]
