"""Learning offline from what the smoke run stored: `train.py experiment=offline_…`, left alone, and killed once."""

import json
import math
import signal
from pathlib import Path
from statistics import fmean

import pytest

from tests.integration.killers import die_in_update
from tests.integration.runs import Run, Smoke, assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(1800)]

ITERATIONS, STEPS = 3, 12
LIKE_SMOKE = (
    *("env=fake", "tasks=fake", "tasks.train.count=4", "tasks.held_out.count=4"),
    *("deterministic=true", "evaluation.rollouts_per_task=2", "rollout.settings.max_steps=4"),
    *("datamodule.batch_size=8", f"datamodule.steps={STEPS}"),
    "callbacks.checkpoint.keep=9",
)
"""What makes an experiment of MiniWoB++ pages one of the desktop in memory."""


def offline(smoke: Smoke, directory: Path, experiment: str, *overrides: str) -> Run:
    """A run that learns from the smoke run's episodes."""
    where = (f"source={smoke.run.directory}", f"model.path={smoke.policy}", f"iterations={ITERATIONS}")
    return Run(directory, smoke.sessions, f"experiment={experiment}", *where, *LIKE_SMOKE, *overrides)


def success(run: Run, iteration: int) -> float:
    path = run.directory / "eval" / f"iteration_{iteration:06d}.json"
    return json.loads(path.read_text())["in_domain"]["overall"]["success_rate"]


def test_dpo_learns_and_where_it_was_killed_ends_bit_for_bit_as_where_it_was_left_alone(smoke, ending, tmp_path):
    alone, killed = (ending(offline(smoke, tmp_path / name, "offline_dpo")) for name in ("alone", "killed"))
    assert alone.go() == 0, alone.said
    assert [line["step"] for line in alone.metrics] == list(range(ITERATIONS + 1))
    assert all({"train/loss", "train/accuracy", "train/grad_norm"} <= line.keys() for line in alone.metrics[1:])
    assert sorted(path.name for path in (alone.directory / "eval").iterdir()) == [
        f"iteration_{iteration:06d}.json" for iteration in (0, ITERATIONS)
    ]
    assert "pairs of 4 tasks" in alone.said
    losses = [line["train/loss"] for line in alone.metrics[1:]]
    assert losses[0] == pytest.approx(math.log(2), abs=0.03)  # of four steps, the first of which has it exactly
    assert fmean(losses[1:]) < losses[0] - 0.02  # of other pairs: two batches differ by as much as a few steps teach
    assert alone.metrics[-1]["train/reward_good"] > alone.metrics[-1]["train/reward_bad"]

    die_in_update(killed, steps=STEPS // ITERATIONS + 2)
    assert killed.wait() == -signal.SIGKILL
    assert [path.name for path in killed.checkpoints] == ["iteration_000001.ckpt"]
    assert killed.go("resume=auto") == 0, killed.said
    for one, other in zip(killed.checkpoints, alone.checkpoints, strict=True):
        assert one.name == other.name
        assert_same_checkpoint(one, other)
    assert killed.learned == alone.learned
    assert success(killed, ITERATIONS) == success(alone, ITERATIONS)
    killed.assert_nothing_left()


@pytest.mark.parametrize("experiment", ["offline_rs", "offline_kto"])
def test_the_other_two_learn_from_the_same_episodes(smoke, ending, tmp_path, experiment):
    run = ending(offline(smoke, tmp_path / "run", experiment, "datamodule.batch_size=64"))  # few batches, alike
    assert run.go() == 0, run.said
    losses = [line["train/loss"] for line in run.metrics[1:]]
    assert fmean(losses[1:]) < losses[0]
