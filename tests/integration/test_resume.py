"""A run that is killed, stopped and damaged in every way, against one that was left alone; then one with a lag.

The kill in a rollout is in `test_smoke.py`.

With a lag rollouts go on while the trainer updates, and what a run learns depends on the moments at which episodes
end; what it may not lose, and how old a step may be, does not.
"""

import signal

import pytest
import torch

from arpo.types import Trajectory
from tests.integration.killers import BYTES, Begin, die_by, die_in, die_in_update, go_on, stop
from tests.integration.runs import Run, assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(3600)]


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


STAGES = {
    "killed in update": (die_in_update, -signal.SIGKILL, 1, 1, ""),
    "killed in checkpoint": (die_by("DieInCheckpoint", iteration=5), -signal.SIGXFSZ, None, 4, ""),
    # the metrics of a checkpoint are never missing
    "killed after checkpoint": (die_by("DieAfterCheckpoint", iteration=6), -signal.SIGKILL, 6, 6, ""),
    "killed in sync": (die_in("sync", version=8), -signal.SIGKILL, None, 8, ""),
    "stopped by Ctrl-C": (stop(9, signal.SIGINT), 128 + signal.SIGINT, 10, 10, "resume=auto"),
    "stopped at once": (stop_at_once, 128 + signal.SIGINT, 10, 10, ""),  # it was in the middle of the next
    "damaged": (damage, 0, 16, 16, "is damaged; falling back to the one before"),
    "finished": (go_on, 0, 16, 16, "the run is finished"),
}
"""Each with its beginning, exit code, iterations with metrics, newest checkpoint and what it says."""


def test_a_run_that_is_disturbed_in_every_way_ends_with_what_one_has_that_was_left_alone(smoke, ending, tmp_path):
    """Parameters, optimizer, replay buffer, sampler, metrics and trajectories; and a finished run stays as it is."""
    run = ending(smoke.again(tmp_path / "run"))
    for stage, (begin, code, iterations, checkpoint, words) in STAGES.items():
        before = run.files()
        begin(run)
        assert run.wait() == code, f"{stage}: {run.said}"
        assert iterations in (None, len(run.metrics) - 1), stage
        assert run.checkpoints[-1].name == f"iteration_{checkpoint:06d}.ckpt", stage
        assert words in run.said
        if "checkpoint" in stage:  # the next start removes an unfinished one
            unfinished = [path.stat().st_size for path in run.unfinished]
            assert unfinished == ([BYTES] if stage == "killed in checkpoint" else [])
        if code >= 0:
            assert stage == "stopped at once" or "Traceback" not in run.said
            run.assert_nothing_left()  # of this process, and of those that were killed before it
    assert run.files() == before
    assert run.go() == 2
    assert "already holds a run" in run.said
    assert run.files() == before

    for one, other in zip(run.checkpoints, smoke.run.checkpoints, strict=True):
        assert one.name == other.name
        assert_same_checkpoint(one, other)
    for one, other in zip(run.learned, smoke.run.learned, strict=True):
        assert one == other
    ours, theirs = (each.trajectories(range(smoke.iterations)) for each in (run, smoke.run))
    assert len(ours) == smoke.iterations * 8 * 4
    assert ours == theirs


ITERATIONS = 8


def newest(run: Run) -> int:
    """The policy version of the last checkpoint, which is the number of iterations that it knows."""
    return int(run.checkpoints[-1].stem.removeprefix("iteration_"))


def left_by_a_kill(run: Run, begin: Begin) -> dict[str, Trajectory]:
    """The episodes in which no policy had a part that the last checkpoint does not know, by id."""
    begin(run)
    assert run.wait() == -signal.SIGKILL, run.said
    version = newest(run)
    kept = {
        t.id: t for t in run.trajectories(range(30)) if all(each.policy_version <= version for each in t.exchanges)
    }
    assert any(int(id.split("/")[0]) >= version for id in kept)  # no update has learned from them
    return kept


def assert_holds(run: Run, kept: dict[str, Trajectory]) -> None:
    episodes = {trajectory.id: trajectory for trajectory in run.trajectories(range(30))}
    assert {id: episodes.get(id) for id in kept} == kept


def test_a_run_with_a_lag_loses_and_doubles_no_episode_and_no_step_lags_more_than_one_update(smoke, ending, tmp_path):
    overrides = ("rollout.settings.max_policy_lag=1", f"iterations={ITERATIONS}", "deterministic=false")
    run = ending(smoke.again(tmp_path / "run", *overrides))
    in_rollout = left_by_a_kill(run, die_in("rollout", version=2))
    version = newest(run)
    in_update = left_by_a_kill(run, die_in_update)
    assert_holds(run, in_rollout)
    resumed = [id for id in in_rollout if id.startswith(f"{version}/")]
    assert run.metrics[version + 1]["rollout/resumed_episodes"] == len(resumed) > 0

    stop(7, signal.SIGTERM)(run)  # as a scheduler asks for the end
    assert run.wait() == 128 + signal.SIGTERM, run.said
    assert_holds(run, in_update)
    assert newest(run) == len(run.metrics) - 1
    assert 6 <= newest(run) < ITERATIONS
    run.assert_nothing_left()

    assert run.go("resume=auto") == 0, run.said
    assert [line["step"] for line in run.metrics] == list(range(ITERATIONS + 1))
    played = [run.trajectories([iteration]) for iteration in range(ITERATIONS)]
    for iteration, ours in enumerate(played):
        theirs = smoke.run.trajectories([iteration])
        assert {t.id: t.task_id for t in ours} == {t.id: t.task_id for t in theirs}  # the same tasks in the same order
    lines = [
        line.split(",")[0]
        for path in (run.directory / "trajectories" / "train").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(set(lines)) == len(lines) == ITERATIONS * 8 * 4
    state = torch.load(run.checkpoints[-1], weights_only=True)["RolloutDataModule"]
    assert sum(record["visits"] for record in state["statistics"].values()) == ITERATIONS * 8 * 4
    assert state["pending"] == []

    lags = {number - each.policy_version for number, ours in enumerate(played) for t in ours for each in t.exchanges}
    assert lags == {0, 1}
    assert all(line["rollout/stale_groups"] == 0 for line in run.metrics[1:])
    # Old log-probabilities are recomputed, so those of the engine differ where it was one version behind.
    assert max(line["engine/logprob_gap_max"] for line in run.metrics[2:]) > 1e-4
    run.assert_nothing_left()
