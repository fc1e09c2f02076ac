"""The contract of every grammar: action to text and back, and of any text actions or a typed error."""

import random
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from arpo.agent import actions
from arpo.agent.actions import CoordinateFrame
from arpo.agent.computer_use import calls_of
from arpo.agent.functions import Function
from arpo.agent.phone import Swipe
from arpo.agent.prompt import GRAMMARS, GrammarName, Prompt, thought_of
from arpo.agent.pyautogui import to_pyautogui
from arpo.agent.response import ParseErrorKind
from arpo.agent.ui_tars import parse_action
from arpo.errors import ActionParseError, ConfigError, TaskFormatError
from tests.agent.corpus import CORPUS, EACH
from tests.agent.strategies import any_action, calls, plain_text

FRAGMENTS = [
    *"{}[]()\":,'\\=<>#\n\r\t +-.;0123456789eE_%\x00\x1b\u2028é你🐢\ud800",
    "<tool_call>", "</tool_call>", "null", "true", "NaN", "Infinity", "1e999", "\\ud800", '"action"', '"coordinate"',
    '"keys": ["ctrl"', "computer_use", '"name"', '"arguments": {', "Action: ", "click(start_box='(1,2)')", "</think>",
    "9" * 50, "<function=computer_use>", "</function>", "<parameter=action>", "</parameter>", "<parameter=keys>",
    "['ctrl'", "<|box_start|>", "<|box_end|>", "<point>", "Thought:", "\nAction: ", "Action_Summary:", "start_box=",
    "content='", "')", "key='", "direction=", "__import__('os')", "\\x41", "\n\n", "+-+-", "') #", "')\n",
    "', point='(1,2)", "', b='", "Action：", "```", "wait(", "type(content='it's\n", "hotkey(key='", "press()",
    "call(a=",
]  # fmt: skip


ANSWERS = {name: [text for grammar, text, *_ in CORPUS if grammar == name] for name in GRAMMARS}


def sampled(grammar: GrammarName, rng: random.Random) -> str:
    """Answers of a grammar, often with some characters and fragments put in, taken out, turned or cut."""
    rows = ANSWERS[grammar]
    if rng.random() < 0.1:
        return "".join(rng.choices(FRAGMENTS + rows, k=rng.randint(0, 30)))
    text = rng.choice(("\n", "\n\n", " ")).join(rng.choices(rows, k=rng.choice((1, 1, 1, 2))))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice(FRAGMENTS) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randint(1, 5) :]
            case 2:
                text = text[:at] + text[at + 1 : at + 10][::-1] + text[at + 10 :]
            case _:
                text = text[:at]
    return text


@pytest.mark.parametrize(
    ("name", "count"), [("ui_tars", 20_000), ("computer_use", 5_000), ("computer_use_xml", 5_000)]
)
def test_whatever_a_model_writes_is_actions_or_a_typed_error(name, count):
    rng, outcomes, frame = random.Random(20261127), Counter[str](), CoordinateFrame(1920, 1080, 1000, 1000)
    for _ in range(count):
        try:
            found = GRAMMARS[name].parse(sampled(name, rng)).actions
        except ActionParseError as error:
            outcomes[ParseErrorKind(error.kind)] += 1
            continue
        assert found
        outcomes["actions"] += 1
        if outcomes["actions"] % (count // 1_000) == 0:
            for action in found:  # what was read can also be recorded and performed
                action.describe()
                compile(to_pyautogui(frame.to_screen(action)), "guest", "exec")
    assert outcomes["actions"] > count // 20
    assert len(outcomes) >= 6
    if name == "ui_tars":  # every kind but the one that a million characters need
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
    wanted = action
    if name.startswith("computer_use") and isinstance(action, actions.Press):
        wanted = actions.Hotkey((action.key,))
    assert read == (wanted,)
    assert parsed.thought == thought.strip()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_response_of_several_actions_is_read_as_these(name):
    way = Swipe(1, 2, 3, 4) if name == "mobile_use" else actions.Drag(1, 2, 3, 4)
    several = (actions.Click(1, 2), actions.TypeText("it's"), way, actions.Finished())
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
    with pytest.raises(ConfigError, match=r"grammar must be 'ui_tars', .*, got 'xml'"):
        Prompt("", "{instruction}", grammar="xml")  # type: ignore[arg-type]


# --- answers as models write them: read rightly; and with a slip in them, an error or the same ---

EDITS = 2_000
SCAFFOLD = re.compile(
    r"</?tool_call>|</?think>|</?function|</?parameter|=(?:computer_use|action|coordinate|text|keys|pixels|status|time)\b"
    r"|[\"'](?:name|arguments|action|coordinate|text|keys|pixels|status|time)[\"']:|[{}]|\], |Action: |start_box="
    r"|end_box=|(?<=type\()content=|key=|direction=|(?<=\w)\((?=\w+=)"
)
"""What stands around values: a slip in a value is another value, and no reader can know."""


def test_the_corpus_is_large_enough_and_has_a_source_for_each_row():
    count = Counter(grammar for grammar, *_ in CORPUS)
    assert sum(count.values()) >= 150
    assert min(count.values()) >= 40
    assert len({(grammar, text) for grammar, text, *_ in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize(("grammar", "text", "meant", "source"), CORPUS)
def test_an_answer_is_read_as_its_source_says(grammar, text, meant, source):
    assert GRAMMARS[grammar].parse(text).actions == meant, source
    for action in meant:  # and can be recorded
        assert parse_action(action.describe()) == action


def slip(text: str, rng: random.Random) -> str:
    """The text with one piece of its frame hurt, lost, doubled, or with something put into it; or cut within one."""
    piece = rng.choice(list(SCAFFOLD.finditer(text)))
    start, end = piece.span()
    middle = rng.randrange(start, end) if end - start < 2 else rng.randrange(start + 1, end)
    whole = text.count("<function=") + text.count('"name"') > 1  # cut behind a whole call, it would be that call
    match rng.randrange(5 if whole else 6):
        case 0:
            return text[:middle] + text[middle + 1 :]
        case 1:
            return text[:start] + text[end:]
        case 2:
            return text[:end] + piece[0] + text[end:]
        case 3:
            return text[:middle] + text[middle : middle + 2][::-1] + text[middle + 2 :]
        case 4:
            return text[:middle] + rng.choice(">{}[]\"':=/x \n") + text[middle:]
        case _:
            return text[:middle]


def is_odd(text: str, meant: tuple[actions.Action, ...]) -> bool:
    """Whether a typed text may hold what stands around it, or a function of any name is called."""
    return ("type(" in text and "start_box" in text) or any(
        isinstance(action, actions.Call) or (isinstance(action, actions.TypeText) and "<" in action.text)
        for action in meant
    )


def test_a_slip_gives_an_error_or_the_same_actions():
    rng, outcomes = random.Random(20261129), Counter[str]()
    framed = [row for row in CORPUS if SCAFFOLD.search(row[1]) and not is_odd(*row[1:3])]
    for _ in range(EDITS):
        grammar, text, meant, _ = rng.choice(framed)
        changed = slip(text, rng)
        try:
            found = GRAMMARS[grammar].parse(changed).actions
        except ActionParseError as error:
            outcomes[ParseErrorKind(error.kind)] += 1
            continue
        outcomes["same"] += 1
        assert found == meant, (grammar, changed)
    assert outcomes["same"] > EDITS // 20
    assert len(outcomes) >= 5


QWEN3_VL = (
    "{%- set said = messages[0] -%}{{ said.content }}{%- for call in said.tool_calls -%}"
    "{%- if said.content or not loop.first %}{{ '\\n' }}{% endif -%}"
    '{{ \'<tool_call>\\n{"name": "\' + call.name + \'", "arguments": \' }}{{ call.arguments | tojson }}'
    "{{ '}\\n</tool_call>' }}{%- endfor -%}"
)
"""Written after what the published template does with the turn of an assistant, as the next one."""
QWEN3_5 = (
    "{%- set said = messages[0] -%}{{ said.content }}{%- for call in said.tool_calls -%}"
    "{%- if loop.first and said.content %}{{ '\\n\\n' }}{% elif not loop.first %}{{ '\\n' }}{% endif -%}"
    "{{ '<tool_call>\\n<function=' + call.name + '>\\n' }}{%- for name, value in call.arguments | items -%}"
    "{{ '<parameter=' + name + '>\\n' }}"
    "{%- if value is sequence and value is not string %}{{ value | tojson }}{% else %}{{ value | string }}{% endif -%}"
    "{{ '\\n</parameter>\\n' }}{%- endfor -%}{{ '</function>\\n</tool_call>' }}{%- endfor -%}"
)
CALLS = actions.Call("mousepad.write", {"text": "42", "n": 3, "by": 0.5, "all": True, "path": 'it\'s "so" ✓'})
TEMPLATES: list[tuple[GrammarName, str]] = [("computer_use", QWEN3_VL), ("computer_use_xml", QWEN3_5)]


def rendered(template: str, thought: str, *said: actions.Action) -> str:
    calls = [{"name": name, "arguments": dict(given)} for name, given in calls_of(*said)]
    message: list[dict[str, Any]] = [{"role": "assistant", "content": thought, "tool_calls": calls}]
    texts, _ = render_jinja_template(conversations=[message], chat_template=template)  # type: ignore[arg-type]
    return str(texts[0])


@pytest.mark.parametrize(("grammar", "template"), TEMPLATES)
@pytest.mark.parametrize("thought", ["", "I see 报告."])
def test_each_action_is_written_as_the_template_writes_it(grammar, template, thought):
    for action in (CALLS, actions.Drag(1, 2, 3, 4), *(action for _, action in EACH)):
        assert GRAMMARS[grammar].render(action, thought) == rendered(template, thought, action)
    several = (actions.Click(1, 2.5), CALLS, actions.Finished())
    assert GRAMMARS[grammar].render(several[0], thought, *several[1:]) == rendered(template, thought, *several)
