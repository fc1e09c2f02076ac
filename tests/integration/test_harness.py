"""A run of a foreign program: killed in a rollout it leaves nothing, goes on bit for bit, and replays successes."""

import signal
import sys

import pytest

from tests.integration.killers import die_in
from tests.integration.runs import assert_same_checkpoint, processes_of
from tests.rollout.agents import OWN_LOOP

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(1800)]

PROGRAM = f"sleep 613 & exec {sys.executable} -S -E {OWN_LOOP}"
"""It does not see to its own child."""


def test_a_run_of_a_foreign_program_that_is_killed_goes_on_bit_for_bit(smoke, ending, tmp_path):
    words = ("iterations=3", "harness=command", f'harness.argv=[sh,-c,"{PROGRAM}"]')
    left_alone, run = (ending(smoke.again(tmp_path / name, *words)) for name in ("left_alone", "run"))
    assert left_alone.go() == 0, left_alone.said
    left_alone.assert_nothing_left()
    assert sum(line["replay/injected"] for line in left_alone.metrics[1:]) > 0

    die_in("rollout", version=1)(run)
    run.wait_until(lambda: "sleep" in {process.name() for process in processes_of(run.sessions)}, "a program")
    assert run.wait() == -signal.SIGKILL, run.said
    run.assert_gone_within(10)
    rolled_out = len(run.trajectories([1]))
    assert 0 < rolled_out < 32
    assert run.go("resume=auto") == 0, run.said
    assert run.metrics[2]["rollout/resumed_episodes"] == rolled_out
    assert run.learned == left_alone.learned
    assert run.trajectories(range(3)) == left_alone.trajectories(range(3))
    for ours, theirs in zip(run.checkpoints, left_alone.checkpoints, strict=True):
        assert_same_checkpoint(ours, theirs)
    run.assert_nothing_left()
