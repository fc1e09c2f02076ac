"""One run that is killed, stopped and damaged in every way on its way, against one that was left alone.

One kill in a rollout is in `test_smoke.py`, which make test runs.

Every test takes the run one stage further and looks at what that stage left. The last ones compare the end with the
run that was left alone: parameters, optimizer, replay buffer, sampler, metrics and trajectories, bit for bit.
"""

import signal

import pytest

from tests.integration.journey import Journey
from tests.integration.killers import BYTES
from tests.integration.runs import Smoke, assert_same_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


class Damaged(Journey):
    """Nine ways to be disturbed."""

    @property
    def stages(self):
        return {
            "killed in rollout": lambda: self.die(engine="rollout", version=2),
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
        self.run.tell(signal.SIGINT)
        self.run.wait_until(lambda: "once more stops at once" in self.run.said, "the first signal")
        self.run.tell(signal.SIGINT)

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


def test_it_is_killed_in_the_middle_of_a_rollout(journey):
    left = journey.reach("killed in rollout")
    assert left.code == -signal.SIGKILL
    assert left.iterations == 2
    assert 0 < left.rolled_out < 32  # what had ended is on disk


def test_what_had_ended_before_the_kill_is_not_rolled_out_again(journey):
    journey.reach("killed in update")
    assert journey.run.metrics[3]["rollout/resumed_episodes"] == journey.reach("killed in rollout").rolled_out


def test_it_is_killed_between_two_steps_of_an_update(journey):
    left = journey.reach("killed in update")
    assert left.code == -signal.SIGKILL
    assert left.iterations == 3
    assert left.checkpoints[-1] == "iteration_000003.ckpt"


def test_it_is_killed_in_the_middle_of_a_checkpoint(journey):
    left = journey.reach("killed in checkpoint")
    assert left.code == -signal.SIGXFSZ
    assert left.partial == [BYTES]
    assert left.checkpoints[-1] == "iteration_000004.ckpt"


def test_it_is_killed_right_after_a_checkpoint(journey):
    left = journey.reach("killed after checkpoint")
    assert left.code == -signal.SIGKILL
    assert left.partial == []  # the unfinished one of the stage before is gone
    assert left.checkpoints[-1] == "iteration_000006.ckpt"
    assert left.iterations == 6  # the metrics of a checkpoint are never missing


def test_it_is_killed_in_the_middle_of_a_sync(journey):
    left = journey.reach("killed in sync")
    assert left.code == -signal.SIGKILL
    assert left.checkpoints[-1] == "iteration_000008.ckpt"


def test_the_first_ctrl_c_finishes_the_iteration_and_writes_a_checkpoint(journey):
    left = journey.reach("stopped by Ctrl-C")
    assert left.code == 128 + signal.SIGINT
    assert left.checkpoints[-1] == f"iteration_{left.iterations:06d}.ckpt"
    assert left.iterations == 10
    assert "resume=auto" in left.said
    assert "Traceback" not in left.said
    journey.run.assert_nothing_left()  # of this process, and of the five that were killed before it


def test_the_second_ctrl_c_ends_the_run(journey):
    left = journey.reach("stopped at once")
    assert left.code == 128 + signal.SIGINT
    assert left.iterations == journey.reach("stopped by Ctrl-C").iterations  # it was in the middle of the next
    journey.run.assert_nothing_left()


def test_a_damaged_checkpoint_is_passed_over(journey):
    left = journey.reach("damaged")
    assert left.code == 0, left.said
    assert "is damaged; falling back to the one before" in left.said
    journey.run.assert_nothing_left()


def test_it_ends_with_the_parameters_the_optimizer_and_the_buffer_of_the_run_that_was_left_alone(journey, smoke):
    journey.reach("damaged")
    assert [path.name for path in journey.run.checkpoints] == [path.name for path in smoke.run.checkpoints]
    for one, other in zip(journey.run.checkpoints, smoke.run.checkpoints, strict=True):
        assert_same_checkpoint(one, other)


def test_it_ends_with_the_metrics_of_the_run_that_was_left_alone(journey, smoke):
    journey.reach("damaged")
    assert [line["step"] for line in journey.run.metrics] == [line["step"] for line in smoke.run.metrics]
    for one, other in zip(journey.run.learned, smoke.run.learned, strict=True):
        assert one == other


def test_it_ends_with_the_trajectories_of_the_run_that_was_left_alone(journey, smoke):
    journey.reach("damaged")
    ours, theirs = (run.trajectories(range(smoke.iterations)) for run in (journey.run, smoke.run))
    assert len(ours) == smoke.iterations * 8 * 4
    assert ours == theirs


def test_a_finished_run_says_so_and_stays_as_it_is(journey):
    left = journey.reach("finished")
    assert left.code == 0
    assert "the run is finished" in left.said
    assert journey.run.files() == journey.before_finish


def test_a_second_run_in_the_same_folder_is_refused(journey):
    journey.reach("finished")
    assert journey.run.go() == 2
    assert "already holds a run" in journey.run.said
    assert journey.run.files() == journey.before_finish
