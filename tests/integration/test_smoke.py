"""`python train.py experiment=smoke`: everything works together, the policy learns, and a kill changes nothing."""

import signal
from statistics import fmean

import pytest
import torch

from tests.integration.killers import die_in
from tests.integration.runs import assert_same_checkpoint, differences

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


def test_success_rises_from_a_sparse_base_and_replay_has_work(smoke):
    lines = smoke.run.metrics[1:]
    rates = [line["rollout/success_rate"] for line in lines]
    assert 0.1 <= fmean(rates[:3]) <= 0.4
    assert fmean(rates[-3:]) >= fmean(rates[:3]) + 0.25
    assert lines[-1]["val/in_domain/success_rate"] > smoke.run.metrics[0]["val/in_domain/success_rate"] + 0.25
    assert lines[0]["group/all_failed"] > 0
    assert sum(line["replay/injected"] for line in lines) >= 5
    assert lines[-1]["replay/size"] > lines[0]["replay/size"]


def test_engine_and_trainer_agree_before_and_after_every_sync(smoke):
    """Of everything that was sampled between one sync and the next."""
    for line in smoke.run.metrics[1:]:
        assert line["engine/logprob_gap_mean"] <= 1e-4
        assert line["engine/logprob_gap_max"] <= 1e-4


def test_the_run_leaves_results_and_nothing_else(smoke):
    names = {path.name for path in smoke.run.directory.iterdir()}
    assert {"metrics.jsonl", "config.yaml", "run.json", "checkpoints", "trajectories", "eval"} <= names
    assert [path.name for path in smoke.run.checkpoints] == [
        f"iteration_{number:06d}.ckpt" for number in range(1, smoke.iterations + 1)
    ]
    smoke.run.assert_nothing_left()


def test_a_checkpoint_holds_built_ins_and_tensors_alone(smoke):
    """And so it loads without running code; it differs from the one before it."""
    newest, before = smoke.run.checkpoints[-1], smoke.run.checkpoints[-2]
    state = torch.load(newest, weights_only=True)
    last = smoke.iterations
    assert state["policy_version"] == last
    found = differences(state, torch.load(before, weights_only=True), "")
    assert f"/policy_version: {last} and {last - 1}" in found
    assert any(place.startswith("/state_dict/policy.model.") for place in found)


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_bit_for_bit_and_rolls_nothing_out_again(smoke, ending, tmp_path):
    """Killed in the rollout of the second iteration and in the evaluation at its end."""
    run = ending(smoke.again(tmp_path / "run", "iterations=3"))
    die_in("rollout", version=1)(run)
    assert run.wait() == -signal.SIGKILL, run.said
    assert len(run.metrics) == 2
    rolled_out = len(run.trajectories([1]))
    assert 0 < rolled_out < 32  # what had ended is on disk

    run.start("resume=auto")
    evaluated = run.directory / "trajectories" / "eval" / "iteration_000003.jsonl"
    run.wait_until(evaluated.exists, "the evaluation at the end")
    run.send(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, run.said
    assert run.checkpoints[-1].name == "iteration_000003.ckpt"

    assert run.go("resume=auto") == 0, run.said
    assert run.metrics[2]["rollout/resumed_episodes"] == rolled_out
    evaluation = {name for name in run.learned[3] if name.startswith("val/")}
    assert evaluation == {name for name in run.learned[0] if name.startswith("val/")}
    lines = [*run.learned[:3], {name: value for name, value in run.learned[3].items() if name not in evaluation}]
    assert lines == smoke.run.learned[:4]
    assert not any(line.get("engine/moved_bytes") for line in (*run.metrics, *smoke.run.metrics))  # one copy
    assert run.trajectories(range(3)) == smoke.run.trajectories(range(3))
    for ours, theirs in zip(run.checkpoints, smoke.run.checkpoints, strict=False):  # the other run goes on
        assert_same_checkpoint(ours, theirs)
    run.assert_nothing_left()
