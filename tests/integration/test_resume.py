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
from tests.integration.journey import Journey, Left, die_by, die_in, die_in_update, go_on, stop
from tests.integration.killers import BYTES
from tests.integration.runs import Run, Smoke, assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


def stop_at_once(run: Run) -> None:
    iterations = len(run.metrics) - 1
    die_in("rollout", iterations, "EngineThatHangs")(run)
    run.wait_for_rollout(iterations)
    run.send(signal.SIGINT)
    run.wait_until(lambda: "once more stops at once" in run.said, "the first signal")
    run.send(signal.SIGINT)


def damage(run: Run) -> None:
    newest = run.checkpoints[-1]
    with newest.open("rb+") as file:
        file.truncate(newest.stat().st_size // 2)
    go_on(run)


@pytest.fixture(scope="module")
def journey(smoke: Smoke, tmp_path_factory: pytest.TempPathFactory):
    """Eight ways to be disturbed."""
    run = smoke.again(tmp_path_factory.mktemp("journey") / "run")
    stages = {
        "killed in update": die_in_update,
        "killed in checkpoint": die_by("DieInCheckpoint", iteration=5),
        "killed after checkpoint": die_by("DieAfterCheckpoint", iteration=6),
        "killed in sync": die_in("sync", version=8),
        "stopped by Ctrl-C": stop(9, signal.SIGINT),
        "stopped at once": stop_at_once,
        "damaged": damage,
        "finished": go_on,
    }
    yield Journey(run, stages)
    run.end()


@pytest.mark.parametrize(
    ("stage", "code", "iterations", "checkpoint", "words"),
    [
        ("killed in update", -signal.SIGKILL, 1, 1, ""),
        ("killed in checkpoint", -signal.SIGXFSZ, None, 4, ""),
        ("killed after checkpoint", -signal.SIGKILL, 6, 6, ""),  # the metrics of a checkpoint are never missing
        ("killed in sync", -signal.SIGKILL, None, 8, ""),
        ("stopped by Ctrl-C", 128 + signal.SIGINT, 10, 10, "resume=auto"),
        ("stopped at once", 128 + signal.SIGINT, 10, 10, ""),  # it was in the middle of the next
        ("damaged", 0, None, None, "is damaged; falling back to the one before"),
        ("finished", 0, None, None, "the run is finished"),
    ],
)
def test_it_is_disturbed_in_every_way_and_says_so(journey, stage, code, iterations, checkpoint, words):
    left = journey.reach(stage)
    assert left.code == code, left.said
    assert iterations in (None, left.iterations)
    assert checkpoint is None or left.checkpoints[-1] == f"iteration_{checkpoint:06d}.ckpt"
    assert words in left.said
    if "checkpoint" in stage:
        assert left.partial == ([BYTES] if stage == "killed in checkpoint" else [])  # the next start removes it
    if code >= 0:
        assert stage == "stopped at once" or "Traceback" not in left.said
        journey.run.assert_nothing_left()  # of this process, and of those that were killed before it


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
    before = journey.reach("damaged").files
    assert journey.reach("finished").files == before
    assert journey.run.go() == 2
    assert "already holds a run" in journey.run.said
    assert journey.run.files() == before


# --- with a lag -----------------------------------------------------------------------------------------------------

ITERATIONS = 8


@pytest.fixture(scope="module")
def lagging(smoke, tmp_path_factory):
    """A kill while both sides work, and the end that a scheduler asks for."""
    overrides = ("rollout.settings.max_policy_lag=1", f"iterations={ITERATIONS}", "deterministic=false")
    run = smoke.again(tmp_path_factory.mktemp("lag") / "run", *overrides)
    stages = {
        "killed in rollout": die_in("rollout", version=2),
        "killed in update": die_in_update,
        "stopped by SIGTERM": stop(7, signal.SIGTERM),
        "finished": go_on,
    }
    yield Journey(run, stages)
    run.end()


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


def test_it_goes_on_skips_no_iteration_and_records_and_counts_no_episode_twice(lagging, smoke):
    left, finished = lagging.reach("finished"), lagging.run
    assert left.code == 0, left.said
    assert [line["step"] for line in finished.metrics] == list(range(ITERATIONS + 1))
    for iteration in range(ITERATIONS):
        ours, theirs = ({t.id: t.task_id for t in run.trajectories([iteration])} for run in (finished, smoke.run))
        assert ours == theirs  # the same tasks in the same iterations
    lines = [
        line.split(",")[0]
        for path in (finished.directory / "trajectories" / "train").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(set(lines)) == len(lines) == ITERATIONS * 8 * 4
    state = torch.load(finished.checkpoints[-1], weights_only=True)["RolloutDataModule"]
    assert sum(record["visits"] for record in state["statistics"].values()) == ITERATIONS * 8 * 4
    assert state["pending"] == []
    finished.assert_nothing_left()


def test_no_step_lags_more_than_one_update_behind_and_some_do(lagging):
    lagging.reach("finished")
    lags = [
        iteration - step.policy_version
        for iteration in range(ITERATIONS)
        for trajectory in lagging.run.trajectories([iteration])
        for step in trajectory.steps
    ]
    assert set(lags) == {0, 1}
    assert all(line["rollout/stale_groups"] == 0 for line in lagging.run.metrics[1:])
    # Old log-probabilities are recomputed, so those of the engine differ where it was one version behind.
    assert max(line["engine/logprob_gap_max"] for line in lagging.run.metrics[2:]) > 1e-4
