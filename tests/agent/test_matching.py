"""Agreement with an expert's action, part by part, and what it is worth."""

import pytest

from arpo.agent import actions
from arpo.agent.matching import Match, StepScore, compare
from arpo.errors import ConfigError

NOTHING = Match(kind=False, point=False, text=False)
ALL = Match(kind=True, point=True, text=True)
ELSEWHERE = Match(kind=True, point=False, text=True)
OTHERWISE = Match(kind=True, point=True, text=False)

PAIRS = [
    (actions.Click(10, 10), actions.Click(10, 10), ALL),
    (actions.Click(15, 5), actions.Click(10, 10), ALL),  # a corner of the box
    (actions.Click(15.5, 10), actions.Click(10, 10), ELSEWHERE),
    (actions.Click(10, 4), actions.Click(10, 10), ELSEWHERE),
    (actions.Click(10, 10, count=2), actions.Click(10, 10), NOTHING),
    (actions.Drag(1, 1, 50, 50), actions.Drag(1, 1, 54, 46), ALL),
    (actions.Drag(1, 1, 50, 50), actions.Drag(1, 1, 56, 50), ELSEWHERE),
    (actions.Drag(9, 1, 50, 50), actions.Drag(1, 1, 50, 50), ELSEWHERE),
    (actions.Drag(None, None, 50, 50), actions.Drag(1, 1, 50, 50), ELSEWHERE),
    (actions.Scroll("down", 10, 10), actions.Scroll("down", 12, 12), ALL),
    (actions.Scroll("up", 10, 10), actions.Scroll("down", 12, 12), OTHERWISE),
    (actions.Scroll("down"), actions.Scroll("down"), ALL),
    (actions.Scroll("down"), actions.Scroll("down", 12, 12), ELSEWHERE),
    (actions.TypeText("two  words "), actions.TypeText("two words"), ALL),
    (actions.TypeText("ｆｕｌｌ"), actions.TypeText("full"), ALL),
    (actions.TypeText("word\n"), actions.TypeText("word"), OTHERWISE),  # one of them is submitted
    (actions.TypeText("Word"), actions.TypeText("word"), OTHERWISE),  # a password has its case
    (actions.Press("enter"), actions.Hotkey(("enter",)), ALL),
    (actions.Press("a"), actions.Press("b"), OTHERWISE),
    (actions.Hotkey(("ctrl", "c")), actions.Hotkey(("ctrl", "v")), OTHERWISE),
    (actions.KeyDown("a"), actions.KeyDown("b"), OTHERWISE),
    (actions.KeyDown("a"), actions.KeyUp("a"), NOTHING),
    (actions.Finished("done"), actions.Finished(), ALL),
    (actions.Finished(), actions.Fail(), NOTHING),
    (actions.CallUser(), actions.CallUser(), ALL),
    (actions.Wait(), actions.Wait(), ALL),
    (actions.Call("f", {"a": "x", "b": 1}), actions.Call("f", {"b": 1, "a": "x"}), ALL),
    (actions.Call("f", {"a": "x"}), actions.Call("g", {"a": "x"}), OTHERWISE),
    (actions.Call("f", {"a": "x  y"}), actions.Call("f", {"a": "x y"}), OTHERWISE),  # another path
    (actions.Call("f", {"a": True}), actions.Call("f", {"a": 1}), OTHERWISE),
    (actions.Call("f", {"a": "1"}), actions.Call("f", {"a": 1}), OTHERWISE),
    (actions.Call("f", {"a": 1}), actions.Call("f"), OTHERWISE),
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
