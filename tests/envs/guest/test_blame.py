"""The rule of blame: each row of its table."""

import math

import pytest

from arpo.envs.guest.blame import score_of
from arpo.errors import BlamedError, DesktopDestroyedError, EnvError


@pytest.mark.parametrize("score", [0, 0.25, 1.0, True])
def test_a_score_counts(score):
    assert score_of({"reply": {"score": score}}) == float(score)


@pytest.mark.parametrize(
    ("outcome", "error", "kind"),
    [
        ({"reply": {"score": math.nan}}, BlamedError, "result"),
        ({"reply": {"score": 1.5}}, BlamedError, "result"),
        ({"reply": {"score": "1"}}, BlamedError, "result"),
        ({"reply": {"error": "result", "message": "KeyError"}}, BlamedError, "result"),
        ({"reply": {"error": "destroyed", "message": "the disk is full"}}, BlamedError, "destroyed"),
        ({"ended": "status -9", "starved": False}, BlamedError, "excess"),
        ({"reply": {"error": "guest", "message": "no answer"}}, EnvError, "guest"),
        ({"reply": {"error": "slow", "message": "no core"}}, EnvError, "evaluate"),
        ({"reply": {"error": "package", "message": "easyocr"}}, EnvError, "evaluate"),
        ({"reply": {"error": "request", "message": "KeyError"}}, EnvError, "evaluate"),
        ({"ended": "status -9", "starved": True}, EnvError, "evaluate"),
    ],
)
def test_what_an_agent_can_cause_is_its_zero_and_what_none_can_is_void(outcome, error, kind):
    with pytest.raises(error) as caught:
        score_of(outcome)
    assert caught.value.kind == kind
    assert isinstance(caught.value, DesktopDestroyedError) == (kind == "destroyed")
