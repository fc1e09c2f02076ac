"""Real desktops in Docker: the contract, resets, and what a guest may do."""

import pytest

from arpo.agent.actions import CallUser, Fail, Wait
from arpo.envs.contract import check_env
from arpo.envs.desktop import DockerDesktop
from tests.envs.desktops import QUICK, editor_task, needs_desktop, task

pytestmark = needs_desktop


@pytest.fixture(scope="module")
def desktop():
    env = DockerDesktop(**QUICK)
    yield env
    env.close()


@pytest.mark.parametrize("reset", ["in_place", "restart", "fresh"])
def test_a_desktop_keeps_the_contract_however_it_is_reset(reset):
    check_env(DockerDesktop(**QUICK, reset=reset), editor_task())


def test_a_desktop_that_is_frozen_between_steps_keeps_the_contract():
    check_env(DockerDesktop(**QUICK, pause=True), editor_task())


def test_doing_nothing_scores_nothing(desktop):
    desktop.reset(editor_task())
    desktop.step(Wait())
    assert desktop.evaluate() == 0.0


@pytest.mark.parametrize("action", [Fail(), CallUser()])
def test_giving_up_is_right_where_the_task_cannot_be_done_and_wrong_elsewhere(desktop, action):
    desktop.reset(task(evaluator={"func": "infeasible"}))
    desktop.step(action)
    assert desktop.evaluate() == 1.0
    desktop.reset(
        task(evaluator={**editor_task().config["evaluator"], "expected": {"type": "rule", "rules": {"expected": ""}}})
    )
    desktop.step(Wait())
    assert desktop.evaluate() == 1.0  # there is no such file, and that is what the task wants
    desktop.step(action)
    assert desktop.evaluate() == 0.0
