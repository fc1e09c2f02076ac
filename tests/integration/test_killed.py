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
IN_UPDATE = (f"+callbacks.killer._target_={DYING}.DieInUpdate", "+callbacks.killer.steps=1")


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


def has_evaluated(run):
    """Whether the first episode of the first evaluation is on disk, and others are running."""
    return (run.directory / "trajectories" / "eval" / "iteration_000000.jsonl").exists()


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
    run.wait_until(lambda: has_evaluated(run), "the evaluation")
    kill(run, "raylet")


def test_killed_in_a_rollout(start, smoke):
    run = start("experiment=smoke", f"model.path={smoke.policy}")
    run.wait_for_rollout(0)
    kill(run, "raylet")


def test_killed_in_an_update(start, smoke):
    run = start("experiment=smoke", f"model.path={smoke.policy}", *IN_UPDATE)
    die(run, "update")


MINIWOB = ("experiment=arpo_miniwob", "env.size=4", "datamodule.sampler.tasks_per_iteration=4")


DESKTOP = ("experiment=arpo_desktop32", "env.size=2", "datamodule.sampler.tasks_per_iteration=1")
PHASES = ["evaluation", "rollout", "update"]


def play_until(run, phase):
    """Let a run come to a phase; in an update it kills itself."""
    if phase == "evaluation":
        run.wait_until(lambda: has_evaluated(run), "the evaluation")
    else:
        run.wait_for_rollout(0)


def die(run, phase):
    """Kill the driver in a phase, or let it kill itself in an update, and see everything go."""
    if phase != "update":
        kill(run, "raylet")
        return
    assert run.wait() == -signal.SIGKILL, run.said
    run.assert_gone_within(LIMIT_S)


def in_phase(phase):
    """What leads a run to a phase soon."""
    overrides = () if phase == "evaluation" else ("callbacks.evaluation.at_start=false",)
    return overrides + (IN_UPDATE if phase == "update" else ())


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("phase", PHASES)
def test_killed_with_browsers(start, smoke, phase):
    run = start(*MINIWOB, f"model.path={smoke.policy}", *in_phase(phase))
    play_until(run, phase)
    assert any("chrom" in name or "headless" in name for name in names(run))
    die(run, phase)


@pytest.mark.docker
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("phase", PHASES)
def test_killed_with_desktops(start, smoke, phase):
    run = start(*DESKTOP, f"model.path={smoke.policy}", *in_phase(phase))
    play_until(run, phase)
    assert len(containers_of(run)) == 2
    die(run, phase)
    assert containers_of(run) == []
