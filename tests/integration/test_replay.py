"""Replay and DART's curation through Trainer.fit: what makes GRPO into ARPO and what does not."""

import sys

import pytest
import torch

from arpo.rollout.curation.requests import DynamicRolloutNumber, DynamicTrajectoryLength
from arpo.rollout.harness import Command
from tests.integration.parts import GROUP_SIZE, TASKS
from tests.rollout.agents import OWN_LOOP


def at_first(version: int, seed: int) -> str:
    """Half of the first iteration's episodes succeed, and none of a later one."""
    return "solve" if version == 0 and seed % 2 == 0 else "fail"


def never(version: int, seed: int) -> str:
    """Every episode fails, some of them with a response that cannot be read: there is a gradient and no success."""
    return ("fail", "babble")[seed % 2]


def always_some(version: int, seed: int) -> str:
    """Every group has successes and failures."""
    return ("solve", "fail", "babble")[seed % 3]


def all_at_first(version: int, seed: int) -> str:
    """Every episode of the first iteration succeeds, and about half of the later ones."""
    return "solve" if version == 0 or seed % 2 == 0 else "fail"


def lost_later(version: int, seed: int) -> str:
    return "solve" if version == 0 else "wait"


def test_without_replay_an_iteration_in_which_all_failed_changes_nothing(learn):
    run = learn(at_first)
    assert [metrics["group/all_failed"] for metrics in run.metrics] == [0.0, 1.0]
    assert run.changed(1) == set()  # bit for bit, though the first iteration left momentum behind
    assert run.steps[1] == run.steps[0] == 2  # no optimizer step: the gradient is exactly zero
    assert run.metrics[1]["train/skipped_minibatches"] == 2.0


def test_with_replay_the_same_iteration_learns_from_the_successes_of_the_one_before(learn):
    run = learn(at_first, replay=True)
    assert run.metrics[1]["group/all_failed"] == 1.0  # as it was collected
    assert run.metrics[1]["replay/injected"] == len(TASKS)
    assert run.metrics[1]["replay/injected_age"] == 1.0
    assert run.metrics[1]["train/grad_norm"] > 0
    assert run.changed(1) == set(run.weights[0])  # every single parameter
    assert run.steps == [2, 4]


@pytest.mark.parametrize(("model", "injected"), [("policy", len(TASKS)), ("helper", 0)])
def test_a_success_of_a_foreign_agent_is_replayed_if_an_update_can_learn_from_it(learn, model, injected):
    argv = ["env", f"ARPO_MODEL={model}", sys.executable, "-S", "-E", str(OWN_LOOP)]
    run = learn(at_first, replay=True, harness=Command(argv=argv))
    assert [metrics["group/all_failed"] for metrics in run.metrics] == [0.0, 1.0]
    assert run.metrics[1]["replay/injected"] == injected
    assert bool(run.metrics[0]["replay/size"]) == bool(run.changed(1)) == bool(injected)


@pytest.mark.parametrize(("mood", "iterations"), [(at_first, 1), (never, 3), (always_some, 3)])
def test_where_nothing_is_to_be_injected_or_into_nothing_arpo_is_grpo_bit_for_bit(learn, mood, iterations):
    arpo, grpo = (learn(mood, str(replay), replay=replay, iterations=iterations) for replay in (True, False))
    assert {metrics["group/all_failed"] for metrics in arpo.metrics} == {float(mood is never)}
    remembers = mood is not never
    assert all((metrics["replay/size"] > 0) == remembers for metrics in arpo.metrics)
    for iteration, (one, other) in enumerate(zip(arpo.weights, grpo.weights, strict=True)):
        assert all(torch.equal(one[name], other[name]) for name in one), f"iteration {iteration}"
        if iteration:
            assert arpo.changed(iteration), "an iteration that learns nothing would prove nothing"
    assert arpo.metrics[0].keys() - grpo.metrics[0].keys() == {"replay/size", "replay/tasks", "replay/injected"} | (
        {"replay/age_mean", "replay/age_max"} if remembers else set()
    )


def test_groups_of_a_solved_task_shrink_to_two_and_still_teach(learn):
    run = learn(all_at_first, iterations=3, group_size=DynamicRolloutNumber(GROUP_SIZE))
    sizes = [metrics["group/size"] for metrics in run.metrics]
    assert sizes[:2] == [GROUP_SIZE, 2.0]  # 7/1 - 5
    assert run.metrics[1]["rollout/dropped_groups"] == 0.0
    mixed = [i for i, metrics in enumerate(run.metrics) if metrics["group/degenerate"] < 1.0]
    assert mixed, "the moods of these seeds leave nothing to learn"
    for iteration in mixed:
        assert run.metrics[iteration]["train/grad_norm"] > 0
        assert run.changed(iteration) == set(run.weights[0])


def test_an_episode_may_not_take_longer_than_the_successes_of_its_task(learn):
    rules = {"free": None, "bound": DynamicTrajectoryLength(limit=3, floor=1)}
    runs = [learn(lost_later, name, max_steps=rule) for name, rule in rules.items()]
    assert [run.metrics[1]["rollout/steps"] for run in runs] == [3.0, 1.0]  # one click solves the task
