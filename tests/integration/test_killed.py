"""Ten seconds after `kill -9` of the driver, in each phase, nothing of the run is left, without another start.

With desktops in Docker it is killed in `test_desktop_training.py`.

And where Ray's head is killed or the disk is full, the run ends by itself, and goes on when it can.
"""

import resource
import signal
import subprocess
from contextlib import ExitStack

import pytest

from arpo.callbacks.checkpoint import is_valid
from tests.browser import needs_chromium
from tests.integration.conftest import short_directory
from tests.integration.runs import Run, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

LIMIT_S = 10.0


@pytest.fixture
def start(tmp_path, ending):
    """Starts runs, each with a temporary directory of its own."""
    with ExitStack() as stack:

        def go(*overrides):
            sessions = stack.enter_context(short_directory())
            run = ending(Run(tmp_path / "run", sessions, *overrides, f"paths.output={tmp_path}"))
            run.start()
            return run

        yield go


def names(run):
    return {process.name() for process in processes_of(run.sessions)}


def kill(run, *wanted):
    """Kill the driver while processes with these names run, and see them go."""
    assert set(wanted) <= names(run)
    run.send(signal.SIGKILL)
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


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("pages", [(), ("env=gymnasium", "tasks=browsergym")], ids=["miniwob", "browsergym"])
def test_killed_in_a_rollout_with_browsers(start, smoke, pages):
    if pages:
        pytest.importorskip("browsergym.miniwob", reason="the package browsergym-miniwob is not installed")
    few = ("env.size=4", "datamodule.sampler.tasks_per_iteration=4", "callbacks.evaluation.at_start=false")
    run = start("experiment=arpo_miniwob", *pages, f"model.path={smoke.policy}", *few)
    run.wait_for_rollout(0)
    assert any("chrom" in name or "headless" in name for name in names(run))
    kill(run, "raylet")


def test_a_run_whose_ray_head_was_killed_ends_by_itself_and_goes_on_with_resume(smoke, ending, tmp_path, monkeypatch):
    # Ray's processes go on without their head for a minute, in which this run would be over.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    run = ending(smoke.again(tmp_path / "run", "iterations=4"))
    run.start()
    run.wait_for_rollout(2)
    (head,) = [process for process in processes_of(run.sessions) if process.name() == "gcs_server"]
    head.kill()
    assert run.wait() != 0

    assert run.go("resume=auto") == 0, run.said
    assert run.trajectories(range(4)) == smoke.run.trajectories(range(4))  # as if nothing had been
    run.assert_nothing_left()


ROOM = "13m"
"""Of one checkpoint of 9 MB and a rollout, but not of two."""


@pytest.fixture
def disk(tmp_path):
    """The directory of a file system in memory with little room, and whether one could be mounted."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", directory]
    mounted = subprocess.run(mount, check=False).returncode == 0
    yield directory, mounted
    if mounted:
        subprocess.run(["umount", "-l", directory], check=True)


def test_a_full_disk_ends_the_run_with_a_sentence_and_resume_goes_on_when_there_is_room(disk, smoke, ending):
    directory, mounted = disk
    run = ending(smoke.again(directory / "run", "iterations=3"))
    run.log = directory.with_name("run.log")
    run.start()
    if not mounted:  # then no file may be longer than a part of a checkpoint
        resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (4_000_000, resource.RLIM_INFINITY))
    assert run.wait() == 2, run.said
    last = run.said.strip().splitlines()[-1]
    assert all(words in last for words in ("ERROR", "resume", "free space")), last
    assert "Traceback" not in run.said
    assert all(is_valid(path) for path in run.checkpoints)
    assert run.checkpoints or not mounted
    run.assert_nothing_left()

    if mounted:
        subprocess.run(["mount", "-o", "remount,size=200m", directory], check=True)
    assert run.go("resume=auto") == 0, run.said
    assert [line["step"] for line in run.metrics] == [0, 1, 2, 3]
    assert run.learned[1:3] == smoke.run.learned[1:3]
