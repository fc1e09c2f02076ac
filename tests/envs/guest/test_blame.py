"""The rule of blame: each row of its table."""

import math

import pytest

from arpo.envs.guest.blame import score_of
from arpo.errors import BlamedError, DesktopDestroyedError, EnvError


@pytest.mark.parametrize("score", [0, 0.25, 1.0, True])
def test_a_score_counts(score):
    assert score_of({"reply": {"score": score}}) == float(score)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ({"reply": {"score": math.nan}}, "result"),
        ({"reply": {"score": 1.5}}, "result"),
        ({"reply": {"score": "1"}}, "result"),
        ({"reply": {"error": "result", "message": "KeyError"}}, "result"),
        ({"reply": {"error": "destroyed", "message": "the disk is full"}}, "destroyed"),
        ({"ended": "status -9", "starved": False}, "excess"),
    ],
)
def test_what_an_agent_can_cause_is_its_zero(outcome, kind):
    with pytest.raises(BlamedError) as error:
        score_of(outcome)
    assert error.value.kind == kind
    assert isinstance(error.value, DesktopDestroyedError) == (kind == "destroyed")


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        ({"reply": {"error": "guest", "message": "no answer"}}, "guest"),
        ({"reply": {"error": "slow", "message": "no core"}}, "evaluate"),
        ({"reply": {"error": "package", "message": "easyocr"}}, "evaluate"),
        ({"reply": {"error": "request", "message": "KeyError"}}, "evaluate"),
        ({"ended": "status -9", "starved": True}, "evaluate"),
    ],
)
def test_what_no_agent_can_cause_is_void(outcome, kind):
    with pytest.raises(EnvError) as error:
        score_of(outcome)
    assert error.value.kind == kind
