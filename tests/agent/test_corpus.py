"""Answers as models write them: read rightly; and with a slip in them, an error or the same, never something else."""

import random
import re
from collections import Counter

import pytest

from arpo.agent.actions import Action, Call, TypeText
from arpo.agent.grammar import GRAMMARS
from arpo.agent.response import ParseErrorKind
from arpo.agent.ui_tars import parse_action
from arpo.errors import ActionParseError
from tests.agent.corpus import CORPUS

EDITS = 2_000
FRAME = re.compile(
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


@pytest.mark.parametrize(("grammar", "text", "actions", "source"), CORPUS)
def test_an_answer_is_read_as_its_source_says(grammar, text, actions, source):
    assert GRAMMARS[grammar].parse(text).actions == actions, source
    for action in actions:  # and can be recorded
        assert parse_action(action.describe()) == action


def slip(text: str, rng: random.Random) -> str:
    """The text with one piece of its frame hurt, lost, doubled, or with something put into it; or cut within one."""
    piece = rng.choice(list(FRAME.finditer(text)))
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


def is_odd(text: str, actions: tuple[Action, ...]) -> bool:
    """Whether a typed text may hold what stands around it, or a function of any name is called."""
    return ("type(" in text and "start_box" in text) or any(
        isinstance(action, Call) or (isinstance(action, TypeText) and "<" in action.text) for action in actions
    )


def test_a_slip_gives_an_error_or_the_same_actions():
    rng, outcomes = random.Random(20261129), Counter[str]()
    framed = [row for row in CORPUS if FRAME.search(row[1]) and not is_odd(*row[1:3])]
    for _ in range(EDITS):
        grammar, text, actions, _ = rng.choice(framed)
        changed = slip(text, rng)
        try:
            found = GRAMMARS[grammar].parse(changed).actions
        except ActionParseError as error:
            outcomes[ParseErrorKind(error.kind)] += 1
            continue
        outcomes["same"] += 1
        assert found == actions, (grammar, changed)
    assert outcomes["same"] > EDITS // 20
    assert len(outcomes) >= 5
