"""A run that is killed, stopped and damaged in every way, against one that was left alone; then one with a lag.

The kill in a rollout is in `test_smoke.py`.

Every test takes a run one stage further and looks at what that stage left. The last ones look at its end: without a
lag it is that of the run that was left alone, bit for bit. With a lag rollouts go on while the trainer updates, and
what it learns depends on the moments at which episodes end; what it may not lose, and how old a step may be, does not.
What a kill in a checkpoint or a sync leaves has nothing to do with the lag.
"""

import signal
from pathlib import Path

import pytest
import torch

from arpo.types import Trajectory
from tests.integration.journey import Journey, Left
from tests.integration.killers import BYTES
from tests.integration.runs import Run, Smoke, assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


class Damaged(Journey):
    """Eight ways to be disturbed."""

    @property
    def stages(self):
        return {
            "killed in update": self.die_in_update,
            "killed in checkpoint": lambda: self.die_by("DieInCheckpoint", iteration=5),
            "killed after checkpoint": lambda: self.die_by("DieAfterCheckpoint", iteration=6),
            "killed in sync": lambda: self.die(engine="sync", version=8),
            "stopped by Ctrl-C": lambda: self.stop(9, signal.SIGINT),
            "stopped at once": self.stop_at_once,
            "damaged": self.damage,
            "finished": self.finish_again,
        }

    def stop_at_once(self) -> None:
        iterations = len(self.run.metrics) - 1
        self.start_with("EngineThatHangs", during="rollout", version=iterations)
        self.run.wait_for_rollout(iterations)
        self.run.send(signal.SIGINT)
        self.run.wait_until(lambda: "once more stops at once" in self.run.said, "the first signal")
        self.run.send(signal.SIGINT)

    def damage(self) -> None:
        newest = self.run.checkpoints[-1]
        with newest.open("rb+") as file:
            file.truncate(newest.stat().st_size // 2)
        self.start()

    def finish_again(self) -> None:
        self.before_finish = self.run.files()
        self.start()


@pytest.fixture(scope="module")
def journey(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory):
    run = smoke.again(tmp_path_factory.mktemp("journey") / "run")
    yield Damaged(run)
    run.end()


@pytest.mark.parametrize(
    ("stage", "code", "iterations", "checkpoint"),
    [
        ("killed in update", -signal.SIGKILL, 1, 1),
        ("killed in checkpoint", -signal.SIGXFSZ, None, 4),
        ("killed after checkpoint", -signal.SIGKILL, 6, 6),  # the metrics of a checkpoint are never missing
        ("killed in sync", -signal.SIGKILL, None, 8),
        ("stopped by Ctrl-C", 128 + signal.SIGINT, 10, 10),
        ("stopped at once", 128 + signal.SIGINT, 10, 10),  # it was in the middle of the next
        ("damaged", 0, None, None),
        ("finished", 0, None, None),
    ],
)
def test_it_is_disturbed_in_every_way(journey, stage, code, iterations, checkpoint):
    left = journey.reach(stage)
    assert left.code == code, left.said
    assert iterations in (None, left.iterations)
    assert checkpoint is None or left.checkpoints[-1] == f"iteration_{checkpoint:06d}.ckpt"
    if code >= 0:
        journey.run.assert_nothing_left()  # of this process, and of those that were killed before it


def test_an_unfinished_checkpoint_is_left_by_a_kill_and_removed_by_the_next_start(journey):
    assert [journey.reach(f"killed {when} checkpoint").partial for when in ("in", "after")] == [[BYTES], []]


def test_what_happened_is_said(journey):
    interrupted, damaged, finished = (journey.reach(each) for each in ("stopped by Ctrl-C", "damaged", "finished"))
    assert "resume=auto" in interrupted.said
    assert "Traceback" not in interrupted.said
    assert "is damaged; falling back to the one before" in damaged.said
    assert "the run is finished" in finished.said


def test_it_ends_with_what_the_run_that_was_left_alone_has(journey, smoke):
    """Parameters, optimizer, replay buffer, sampler, metrics and trajectories."""
    journey.reach("damaged")
    assert [path.name for path in journey.run.checkpoints] == [path.name for path in smoke.run.checkpoints]
    for one, other in zip(journey.run.checkpoints, smoke.run.checkpoints, strict=True):
        assert_same_checkpoint(one, other)
    assert [line["step"] for line in journey.run.metrics] == [line["step"] for line in smoke.run.metrics]
    for one, other in zip(journey.run.learned, smoke.run.learned, strict=True):
        assert one == other
    ours, theirs = (run.trajectories(range(smoke.iterations)) for run in (journey.run, smoke.run))
    assert len(ours) == smoke.iterations * 8 * 4
    assert ours == theirs


def test_a_finished_run_stays_as_it_is_and_a_second_one_in_its_folder_is_refused(journey):
    journey.reach("finished")
    assert journey.run.files() == journey.before_finish
    assert journey.run.go() == 2
    assert "already holds a run" in journey.run.said
    assert journey.run.files() == journey.before_finish


# --- with a lag -----------------------------------------------------------------------------------------------------

ITERATIONS = 8


class Decoupled(Journey):
    """A kill while both sides work, and the end that a scheduler asks for."""

    @property
    def stages(self):
        return {
            "killed in rollout": lambda: self.die(engine="rollout", version=2),
            "killed in update": self.die_in_update,
            "stopped by SIGTERM": lambda: self.stop(7, signal.SIGTERM),
            "finished": self.start,
        }


@pytest.fixture(scope="module")
def lagging(smoke, tmp_path_factory):
    overrides = ("rollout.settings.max_policy_lag=1", f"iterations={ITERATIONS}", "deterministic=false")
    run = smoke.again(tmp_path_factory.mktemp("lag") / "run", *overrides)
    yield Decoupled(run)
    run.end()


@pytest.fixture(scope="module")
def finished(lagging) -> Run:
    left = lagging.reach("finished")
    assert left.code == 0, left.said
    return lagging.run


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
    ("stage", "then"), [("killed in rollout", "killed in update"), ("killed in update", "stopped by SIGTERM")]
)
def test_no_finished_episode_is_lost_by_a_kill(lagging, stage, then):
    left, after = lagging.reach(stage), lagging.reach(then)
    assert left.code == -signal.SIGKILL, left.said
    ahead = [id for id in kept(left) if int(id.split("/")[0]) >= newest(left)]
    assert ahead  # no update has learned from them
    assert {id: after.episodes.get(id) for id in kept(left)} == kept(left)


def test_what_a_kill_left_is_counted_as_resumed_where_it_is_learned_from(lagging):
    left = lagging.reach("killed in rollout")
    stored = [id for id in kept(left) if id.startswith(f"{newest(left)}/")]
    lagging.reach("killed in update")
    assert lagging.run.metrics[newest(left) + 1]["rollout/resumed_episodes"] == len(stored) > 0


def test_sigterm_finishes_the_iteration_writes_a_checkpoint_and_is_the_exit_code(lagging):
    left = lagging.reach("stopped by SIGTERM")
    assert left.code == 128 + signal.SIGTERM, left.said
    assert newest(left) == left.iterations
    assert 6 <= left.iterations < ITERATIONS
    lagging.run.assert_nothing_left()


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
    # Old log-probabilities are recomputed, so those of the engine differ where it was one version behind.
    assert max(line["engine/logprob_gap_max"] for line in finished.metrics[2:]) > 1e-4
