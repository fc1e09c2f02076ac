"""Agreement with an expert's action, part by part, and what it is worth."""

import pytest

from arpo.agent.actions import (
    Call,
    CallUser,
    Click,
    Drag,
    Fail,
    Finished,
    Hotkey,
    KeyDown,
    KeyUp,
    Press,
    Scroll,
    TypeText,
    Wait,
)
from arpo.agent.matching import Match, StepScore, compare
from arpo.errors import ConfigError

NOTHING = Match(kind=False, point=False, text=False)
ALL = Match(kind=True, point=True, text=True)
ELSEWHERE = Match(kind=True, point=False, text=True)
OTHERWISE = Match(kind=True, point=True, text=False)

PAIRS = [
    (Click(10, 10), Click(10, 10), ALL),
    (Click(15, 5), Click(10, 10), ALL),  # a corner of the box
    (Click(15.5, 10), Click(10, 10), ELSEWHERE),
    (Click(10, 4), Click(10, 10), ELSEWHERE),
    (Click(10, 10, count=2), Click(10, 10), NOTHING),
    (Drag(1, 1, 50, 50), Drag(1, 1, 54, 46), ALL),
    (Drag(1, 1, 50, 50), Drag(1, 1, 56, 50), ELSEWHERE),
    (Drag(9, 1, 50, 50), Drag(1, 1, 50, 50), ELSEWHERE),
    (Drag(None, None, 50, 50), Drag(1, 1, 50, 50), ELSEWHERE),
    (Scroll("down", 10, 10), Scroll("down", 12, 12), ALL),
    (Scroll("up", 10, 10), Scroll("down", 12, 12), OTHERWISE),
    (Scroll("down"), Scroll("down"), ALL),
    (Scroll("down"), Scroll("down", 12, 12), ELSEWHERE),
    (TypeText("two  words "), TypeText("two words"), ALL),
    (TypeText("ｆｕｌｌ"), TypeText("full"), ALL),
    (TypeText("word\n"), TypeText("word"), OTHERWISE),  # one of them is submitted
    (TypeText("Word"), TypeText("word"), OTHERWISE),  # a password has its case
    (Press("enter"), Hotkey(("enter",)), ALL),
    (Press("a"), Press("b"), OTHERWISE),
    (Hotkey(("ctrl", "c")), Hotkey(("ctrl", "v")), OTHERWISE),
    (KeyDown("a"), KeyDown("b"), OTHERWISE),
    (KeyDown("a"), KeyUp("a"), NOTHING),
    (Finished("done"), Finished(), ALL),
    (Finished(), Fail(), NOTHING),
    (CallUser(), CallUser(), ALL),
    (Wait(), Wait(), ALL),
    (Call("f", {"a": "x", "b": 1}), Call("f", {"b": 1, "a": "x"}), ALL),
    (Call("f", {"a": "x"}), Call("g", {"a": "x"}), OTHERWISE),
    (Call("f", {"a": "x  y"}), Call("f", {"a": "x y"}), OTHERWISE),  # another path
    (Call("f", {"a": True}), Call("f", {"a": 1}), OTHERWISE),
    (Call("f", {"a": "1"}), Call("f", {"a": 1}), OTHERWISE),
    (Call("f", {"a": 1}), Call("f"), OTHERWISE),
]


@pytest.mark.parametrize(("action", "expert", "match"), PAIRS, ids=repr)
def test_parts_that_agree(action, expert, match):
    assert compare(action, expert, tolerance=5) == match
    assert compare(expert, action, tolerance=5) == match


def test_golden_scores_of_ui_s1_of_a_hybrid_and_of_two_verdicts():
    hybrid = {"format": 0.1, "kind": 0.2, "point": 0.3, "text": 0.4, "exact": 0}
    for weights, scores in (
        ({}, [1, 0.55, 0.55, 0.19]),
        (hybrid, [1, 0.7, 0.6, 0.1]),
        ({"format": 1, "kind": 0, "exact": 1}, [2, 1, 1, 1]),
    ):
        found = [StepScore(**weights).of(match) for match in (ALL, ELSEWHERE, OTHERWISE, NOTHING)]
        assert found == pytest.approx(scores)
    for name in hybrid:
        with pytest.raises(ConfigError, match=name):
            StepScore(**{name: -0.1})
