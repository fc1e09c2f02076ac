"""Decoupled training: rollouts go on while the trainer updates, syncs and saves, wherever it is killed or stopped.

The run with `max_policy_lag=1` is killed in each phase and resumed. What it learns depends on the moments at which
episodes end; what it may not lose, and how old a step may be, does not.
"""

import signal
from pathlib import Path

import pytest
import torch

from arpo.types import Trajectory
from tests.integration.journey import Journey, Left
from tests.integration.killers import BYTES
from tests.integration.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

ITERATIONS = 8


class Decoupled(Journey):
    """A kill in each phase, and the end that a scheduler asks for."""

    @property
    def stages(self):
        return {
            "killed in rollout": lambda: self.die(engine="rollout", version=2),
            "killed in update": self.die_in_update,
            "killed in checkpoint": lambda: self.die_by("DieInCheckpoint", iteration=5),
            "killed in sync": lambda: self.die(engine="sync", version=5),
            "stopped by SIGTERM": lambda: self.stop(7, signal.SIGTERM),
            "finished": self.start,
        }


@pytest.fixture(scope="module")
def journey(smoke, tmp_path_factory):
    overrides = ("rollout.settings.max_policy_lag=1", f"iterations={ITERATIONS}", "deterministic=false")
    run = smoke.again(tmp_path_factory.mktemp("lag") / "run", *overrides)
    yield Decoupled(run)
    run.end()


@pytest.fixture(scope="module")
def finished(journey) -> Run:
    left = journey.reach("finished")
    assert left.code == 0, left.said
    return journey.run


def newest(left: Left) -> int:
    """The policy version of the last checkpoint, which is the number of iterations that it knows."""
    return int(Path(left.checkpoints[-1]).stem.removeprefix("iteration_"))


def kept(left: Left) -> dict[str, Trajectory]:
    """The episodes in which no policy had a part that the last checkpoint does not know."""
    version = newest(left)
    return {
        id: trajectory
        for id, trajectory in left.episodes.items()
        if all(step.policy_version <= version for step in trajectory.steps)
    }


@pytest.mark.parametrize(
    ("stage", "then", "code"),
    [
        ("killed in rollout", "killed in update", -signal.SIGKILL),
        ("killed in update", "killed in checkpoint", -signal.SIGKILL),
        ("killed in checkpoint", "killed in sync", -signal.SIGXFSZ),
        ("killed in sync", "stopped by SIGTERM", -signal.SIGKILL),
    ],
)
def test_no_finished_episode_is_lost_by_a_kill(journey, stage, then, code):
    left, after = journey.reach(stage), journey.reach(then)
    assert left.code == code, left.said
    ahead = [id for id in kept(left) if int(id.split("/")[0]) >= newest(left)]
    assert ahead  # no update has learned from them
    assert {id: after.episodes.get(id) for id in kept(left)} == kept(left)


def test_it_is_killed_in_the_middle_of_a_checkpoint_and_of_a_sync(journey):
    left = journey.reach("killed in checkpoint")
    assert (left.partial, newest(left)) == ([BYTES], 4)
    left = journey.reach("killed in sync")
    assert (left.partial, newest(left)) == ([], 5)


def test_what_a_kill_left_is_counted_as_resumed_where_it_is_learned_from(journey):
    left = journey.reach("killed in rollout")
    stored = [id for id in kept(left) if id.startswith(f"{newest(left)}/")]
    journey.reach("killed in update")
    assert journey.run.metrics[newest(left) + 1]["rollout/resumed_episodes"] == len(stored) > 0


def test_sigterm_finishes_the_iteration_writes_a_checkpoint_and_is_told_to_the_shell(journey):
    left = journey.reach("stopped by SIGTERM")
    assert left.code == 128 + signal.SIGTERM, left.said
    assert left.checkpoints[-1] == f"iteration_{left.iterations:06d}.ckpt"
    assert 6 <= left.iterations < ITERATIONS
    journey.run.assert_nothing_left()  # of this process, and of the four that were killed before it


def test_it_goes_on_with_what_was_asked_for_and_skips_no_iteration(finished: Run, smoke):
    assert [line["step"] for line in finished.metrics] == list(range(ITERATIONS + 1))
    for iteration in range(ITERATIONS):
        ours, theirs = ({t.id: t.task_id for t in run.trajectories([iteration])} for run in (finished, smoke.run))
        assert ours == theirs  # the same tasks in the same iterations
    finished.assert_nothing_left()


def test_no_episode_is_recorded_or_counted_twice(finished: Run):
    lines = [
        line.split(",")[0]
        for path in (finished.directory / "trajectories" / "train").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(set(lines)) == len(lines) == ITERATIONS * 8 * 4
    state = torch.load(finished.checkpoints[-1], weights_only=True)["RolloutDataModule"]
    assert sum(record["visits"] for record in state["statistics"].values()) == ITERATIONS * 8 * 4
    assert state["pending"] == []


def test_no_step_lags_more_than_one_update_behind_and_some_do(finished: Run):
    lags = [
        iteration - step.policy_version
        for iteration in range(ITERATIONS)
        for trajectory in finished.trajectories([iteration])
        for step in trajectory.steps
    ]
    assert set(lags) == {0, 1}
    assert all(line["rollout/stale_groups"] == 0 for line in finished.metrics[1:])


def test_the_gap_between_engine_and_trainer_is_that_of_the_lag(finished: Run):
    """Old log-probabilities are recomputed, so those of the engine differ where it was one version behind."""
    assert max(line["engine/logprob_gap_max"] for line in finished.metrics[2:]) > 1e-4
