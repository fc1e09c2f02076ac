"""`python train.py experiment=smoke`: everything works together, the policy learns, and a kill changes nothing."""

import signal
from statistics import fmean

import pytest
import torch

from tests.integration.journey import Journey
from tests.integration.runs import assert_same_checkpoint, differences

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


def mean(lines, name):
    return fmean(line[name] for line in lines)


def test_success_rises_from_a_sparse_base(smoke):
    lines = smoke.run.metrics[1:]
    base, end = mean(lines[:3], "rollout/success_rate"), mean(lines[-3:], "rollout/success_rate")
    assert 0.1 <= base <= 0.4
    assert end >= base + 0.25
    assert lines[-1]["val/in_domain/success_rate"] > smoke.run.metrics[0]["val/in_domain/success_rate"] + 0.25


def test_replay_has_work(smoke):
    lines = smoke.run.metrics[1:]
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


class KilledOnce(Journey):
    """Killed in the rollout of the second iteration, it goes on to its end."""

    @property
    def stages(self):
        return {"killed": lambda: self.die(engine="rollout", version=1), "ended": self.start}


@pytest.mark.long
def test_a_run_that_is_killed_in_a_rollout_goes_on_bit_for_bit_and_rolls_nothing_out_again(smoke, ending, tmp_path):
    run = ending(smoke.again(tmp_path / "run", "iterations=3"))
    journey = KilledOnce(run)
    killed, ended = journey.reach("killed"), journey.reach("ended")
    assert killed.code == -signal.SIGKILL, killed.said
    assert killed.iterations == 1
    assert 0 < killed.rolled_out < 32  # what had ended is on disk
    assert ended.code == 0, ended.said
    assert run.metrics[2]["rollout/resumed_episodes"] == killed.rolled_out
    assert run.learned[:3] == smoke.run.learned[:3]
    assert run.trajectories(range(3)) == smoke.run.trajectories(range(3))
    # behind the kill, and before the evaluation at the end: parameters, optimizer, replay buffer, sampler
    assert_same_checkpoint(run.checkpoints[1], smoke.run.checkpoints[1])
    run.assert_nothing_left()
