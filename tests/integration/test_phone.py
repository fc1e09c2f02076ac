"""`python train.py experiment=smoke_phone`: a policy learns actions that no desktop has."""

from statistics import fmean

import pytest

from arpo.agent.phone import Back, Home, Swipe
from arpo.agent.ui_tars import parse_actions
from tests.integration.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


def test_success_rises_and_the_actions_of_a_phone_are_stored(ending, sessions, tmp_path):
    words = ("experiment=smoke_phone", "engine=hf", "env.backend=thread", "iterations=12", f"paths.output={tmp_path}")
    run = ending(Run(tmp_path / "smoke_phone" / "default", sessions, *words))
    assert run.go() == 0, run.said
    rates = [line["rollout/success_rate"] for line in run.metrics[1:]]
    assert 0.1 <= fmean(rates[:3]) <= 0.45
    assert fmean(rates[-3:]) >= fmean(rates[:3]) + 0.25
    stored = [step.action for episode in run.trajectories([11]) for step in episode.steps if step.action]
    assert {Swipe, Back, Home} <= {type(action) for text in stored for action in parse_actions(text)}
