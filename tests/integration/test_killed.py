"""Ten seconds after `kill -9` of the driver, in each phase, nothing of the run is left, without another start."""

import signal

import pytest

from tests.browser import needs_chromium
from tests.envs.desktops import missing
from tests.integration.conftest import short_directory
from tests.integration.journey import DYING
from tests.integration.runs import Run, containers_of, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

LIMIT_S = 10.0


@pytest.fixture
def own_sessions():
    """A temporary directory for one run alone."""
    with short_directory() as directory:
        yield directory


@pytest.fixture
def start(own_sessions, tmp_path, ending):
    """Starts a run."""

    def go(*overrides):
        run = ending(Run(tmp_path / "run", own_sessions, *overrides, f"paths.output={tmp_path}"))
        run.start()
        return run

    return go


def names(run):
    return {process.name() for process in processes_of(run.sessions)}


def kill(run, *wanted):
    """Kill the driver while processes with these names run, and see them go."""
    assert set(wanted) <= names(run)
    run.tell(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    run.assert_gone_within(LIMIT_S)


def test_killed_while_ray_starts(start, smoke):
    run = start("experiment=smoke", f"model.path={smoke.policy}")
    run.wait_until(lambda: "gcs_server" in names(run), "the start of Ray")
    kill(run)


def test_killed_in_a_warm_start(start):
    run = start("experiment=smoke")
    run.wait_until(lambda: len(processes_of(run.sessions)) >= 3, "the warm start")  # it, its driver, a watchdog
    kill(run)


def test_killed_in_an_evaluation(start, smoke):
    run = start("experiment=smoke", f"model.path={smoke.policy}")
    first = run.directory / "trajectories" / "eval" / "iteration_000000.jsonl"
    run.wait_until(first.exists, "the evaluation")  # an episode of it has ended, and others are running
    kill(run, "raylet")


MINIWOB = ("experiment=arpo_miniwob", "env.size=4", "datamodule.sampler.tasks_per_iteration=4")


@pytest.mark.browser
@needs_chromium
def test_killed_in_a_rollout_with_browsers(start, smoke):
    run = start(*MINIWOB, f"model.path={smoke.policy}", "callbacks.evaluation.at_start=false")
    run.wait_for_rollout(0)
    assert any("chrom" in name or "headless" in name for name in names(run))
    kill(run, "raylet")


DESKTOP = ("experiment=arpo_desktop32", "env.size=2", "datamodule.sampler.tasks_per_iteration=1")
IN_UPDATE = (f"+callbacks.killer._target_={DYING}.DieInUpdate", "+callbacks.killer.steps=1")


@pytest.mark.docker
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_killed_in_an_update_with_desktops(start, smoke):
    run = start(*DESKTOP, f"model.path={smoke.policy}", "callbacks.evaluation.at_start=false", *IN_UPDATE)
    run.wait_for_rollout(0)
    assert len(containers_of(run)) == 2
    assert run.wait() == -signal.SIGKILL, run.said
    run.assert_gone_within(LIMIT_S)
    assert containers_of(run) == []
