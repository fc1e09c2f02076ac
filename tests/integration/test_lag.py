"""Decoupled training: the next rollout goes on while the trainer updates."""

import signal

import pytest

from tests.integration.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

ITERATIONS = 8


@pytest.fixture(scope="module")
def run(smoke, tmp_path_factory):
    """A run with `max_policy_lag=1`, stopped in the middle by SIGTERM as a scheduler does, and resumed."""
    overrides = ("rollout.settings.max_policy_lag=1", f"iterations={ITERATIONS}", "deterministic=false")
    run = smoke.again(tmp_path_factory.mktemp("lag") / "run", *overrides)
    run.start()
    run.wait_for_rollout(4)
    run.process.send_signal(signal.SIGTERM)
    run.code = run.wait()
    run.stopped_after = len(run.metrics) - 1
    yield run
    run.end()


@pytest.fixture(scope="module")
def resumed(run):
    assert run.go("resume=auto") == 0, run.said
    return run


def test_sigterm_finishes_the_iteration_writes_a_checkpoint_and_is_told_to_the_shell(run):
    assert run.code == 128 + signal.SIGTERM, run.said
    assert run.checkpoints[-1].name == f"iteration_{run.stopped_after:06d}.ckpt"
    assert 4 <= run.stopped_after < ITERATIONS


def test_it_goes_on_with_what_was_asked_for_and_skips_no_iteration(resumed: Run, smoke):
    assert [line["step"] for line in resumed.metrics] == list(range(ITERATIONS + 1))
    for iteration in range(ITERATIONS):
        ours, theirs = ({t.id: t.task_id for t in run.trajectories([iteration])} for run in (resumed, smoke.run))
        assert ours == theirs  # the same tasks in the same iterations
    resumed.assert_nothing_left()


def test_no_step_lags_more_than_one_update_behind_and_some_do(resumed: Run):
    lags = [
        iteration - step.policy_version
        for iteration in range(ITERATIONS)
        for trajectory in resumed.trajectories([iteration])
        for step in trajectory.steps
    ]
    assert set(lags) == {0, 1}
    assert all(line["rollout/stale_groups"] == 0 for line in resumed.metrics[1:])


def test_the_gap_between_engine_and_trainer_is_that_of_the_lag(resumed: Run):
    """Old log-probabilities are recomputed, so those of the engine differ where it was one version behind."""
    assert all(line["engine/probe_gap"] <= 1e-4 for line in resumed.metrics[1:])
    assert max(line["engine/logprob_gap_max"] for line in resumed.metrics[2:]) > 1e-4
