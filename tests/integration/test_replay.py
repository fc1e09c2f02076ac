"""Replay through Trainer.fit, with its counterfactual: what makes GRPO into ARPO, and what does not."""

import torch

from tests.integration.parts import GROUP_SIZE, TASKS, MoodyEngine, train


def at_first(version: int, seed: int) -> str:
    """Half of the first iteration's episodes succeed, and none of a later one."""
    return "solve" if version == 0 and seed % 2 == 0 else "fail"


def never(version: int, seed: int) -> str:
    """Every episode fails, some of them with a response that cannot be read: there is a gradient and no success."""
    return ("fail", "babble")[seed % 2]


def always_some(version: int, seed: int) -> str:
    """Every group has successes and failures."""
    return ("solve", "fail", "babble")[seed % 3]


def test_without_replay_an_iteration_in_which_all_failed_changes_nothing(tiny_model, tmp_path):
    run = train(tiny_model, tmp_path, lambda chat: MoodyEngine(chat, at_first), replay=False, iterations=2)
    assert run.metrics[0]["group/all_failed"] == 0.0
    assert run.metrics[1]["group/all_failed"] == 1.0
    assert run.changed(1) == set()  # bit for bit, though the first iteration left momentum behind
    assert run.steps[1] == run.steps[0] == 2  # no optimizer step: the gradient is exactly zero
    assert run.metrics[1]["train/skipped_minibatches"] == 2.0


def test_with_replay_the_same_iteration_learns_from_the_successes_of_the_one_before(tiny_model, tmp_path):
    run = train(tiny_model, tmp_path, lambda chat: MoodyEngine(chat, at_first), replay=True, iterations=2)
    assert run.metrics[1]["group/all_failed"] == 1.0  # as it was collected
    assert run.metrics[1]["replay/injected"] == len(TASKS)
    assert run.metrics[1]["replay/injected_age"] == 1.0
    assert run.metrics[1]["train/grad_norm"] > 0
    assert run.changed(1) == set(run.weights[0])  # every single parameter
    assert run.steps == [2, 4]


def test_until_replay_has_something_to_inject_both_runs_are_one(tiny_model, tmp_path):
    runs = [
        train(
            tiny_model, tmp_path / str(replay), lambda chat: MoodyEngine(chat, at_first), replay=replay, iterations=1
        )
        for replay in (True, False)
    ]
    assert_same_weights(*runs)


def test_with_an_empty_buffer_arpo_is_grpo_bit_for_bit(tiny_model, tmp_path):
    runs = [
        train(tiny_model, tmp_path / str(replay), lambda chat: MoodyEngine(chat, never), replay=replay, iterations=3)
        for replay in (True, False)
    ]
    assert [metrics["replay/size"] for metrics in runs[0].metrics] == [0.0, 0.0, 0.0]
    assert_same_weights(*runs)


def test_where_every_group_has_a_success_arpo_is_grpo_bit_for_bit(tiny_model, tmp_path):
    runs = [
        train(tiny_model, tmp_path / str(on), lambda chat: MoodyEngine(chat, always_some), replay=on, iterations=3)
        for on in (True, False)
    ]
    assert all(metrics["group/all_failed"] == 0.0 for metrics in runs[0].metrics)
    assert runs[0].metrics[-1]["replay/size"] >= GROUP_SIZE / 3  # there would have been something to inject
    assert_same_weights(*runs)


def assert_same_weights(arpo, grpo):
    for iteration, (one, other) in enumerate(zip(arpo.weights, grpo.weights, strict=True)):
        assert all(torch.equal(one[name], other[name]) for name in one), f"iteration {iteration}"
        if iteration:
            assert arpo.changed(iteration), "an iteration that learns nothing would prove nothing"
    assert arpo.metrics[0].keys() - grpo.metrics[0].keys() == {"replay/size", "replay/tasks", "replay/injected"} | (
        {"replay/age_mean", "replay/age_max"} if arpo.metrics[0]["replay/size"] else set()
    )
