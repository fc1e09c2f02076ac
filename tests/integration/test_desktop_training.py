"""Training on real desktops while all that can break is broken: nothing of it is scored, all of it comes back."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from arpo.rollout.storage import TrajectoryStore
from tests.envs.desktops import BREAKS, docker, needs_desktop
from tests.integration.runs import ROOT, Run, deadline_in

pytestmark = [
    *needs_desktop,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.engine,
    pytest.mark.ray,
    pytest.mark.timeout(900),
]

MANY = 200
"""Iterations, of which no more are made than it takes to break everything."""
EPISODES = 16
DESKTOPS = 8
OVERRIDES = (
    "~tasks.train.ids",  # a mapping would be added to the one that is there
    "~tasks.held_out.ids",
    "+tasks.train.ids={mousepad:[append-a-line,delete-the-first-line,double-the-text,show-line-numbers]}",
    "+tasks.held_out.ids={galculator:[add]}",
)
STRIKES, NOTICED_S = 3, 20.0
"""A desktop that broke between two rollouts is found when the next one begins."""
REMOVED_S = 10.0
"""So long an idle engine may take to forget a container that a run has removed."""
RECOVERY_S = 20.0
"""5 s are the aim, and what is reached where this machine has nothing else to do."""

FAILED = re.compile(r"environment (\S+) failed at \S+: (\w+): ")
BACK = re.compile(r"environment (\S+) is back after ([0-9.]+) s")


@pytest.fixture(scope="module")
def policy(tmp_path_factory, sessions):
    """What a few demonstrations make: it speaks the grammar, so its episodes reach the desktop."""
    run = Run(
        tmp_path_factory.mktemp("warmstart") / "run",
        sessions,
        "experiment=warmstart_desktop",
        "datamodule.per_task=4",
        "datamodule.steps=60",
        *OVERRIDES,
    )
    try:
        assert run.go() == 0, run.said
        yield run.directory / "policy"
    finally:
        run.end()


@pytest.fixture(scope="module")
def run(policy, sessions, tmp_path_factory):
    """`experiment=arpo_desktop32` on a few tasks."""
    run = Run(
        tmp_path_factory.mktemp("train") / "run",
        sessions,
        "experiment=arpo_desktop32",
        f"model.path={policy}",
        "datamodule.sampler.tasks_per_iteration=2",
        "callbacks.evaluation.at_start=false",
        "evaluation.rollouts_per_task=1",
        "rollout.settings.max_attempts=12",
        *OVERRIDES,
    )
    try:
        yield run
    finally:
        run.end()
        for container in containers_of(run):
            docker("rm", "--force", container)


@pytest.fixture(scope="module")
def struck(run):
    """The run at its end, after every fault of a desktop in turn, and one of the engine."""
    run.start(f"iterations={MANY}")
    run.wait_for_rollout(0)
    broken: set[str] = set()
    for fault in BREAKS:
        strike(run, fault, broken)
    if engine() is not None:
        restart_the_engine()
    ended = len(run.metrics)
    run.wait_until(lambda: len(run.metrics) > ended + 1, "a whole iteration after the last fault")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.said
    return run


def strike(run, fault, broken):
    """Break a desktop, and wait until the run has noticed; a reset in between may have healed it unseen."""
    for _ in range(STRIKES):
        desktop = [name for name in containers_of(run) if name not in broken][-1]
        broken.add(desktop)
        try:
            address = docker("port", desktop, "5000").strip()
            fault(desktop)
        except AssertionError:
            wait_for_removal(desktop)  # the run had let go of this one; the engine says so in three ways
            continue
        deadline = time.monotonic() + NOTICED_S
        while time.monotonic() < deadline:
            assert run.process.poll() is None, run.said
            if any(address in line and FAILED.search(line) for line in run.said.splitlines()):
                return
            time.sleep(0.1)
    raise AssertionError(f"{fault.__name__} was not noticed in {STRIKES} times {NOTICED_S:g} s: {run.said}")


def wait_for_removal(desktop):
    """Return when this container is gone, which a fault must explain that met no desktop; fails if it stays."""
    deadline = deadline_in(REMOVED_S)
    while docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"id={desktop}"):
        assert time.monotonic() < deadline, f"the fault failed on {desktop}, which is still there"
        time.sleep(0.1)


def test_every_fault_is_noticed_and_every_desktop_comes_back(struck):
    assert {kind for _, kind in FAILED.findall(struck.said)} == {"guest"}
    recoveries = [float(seconds) for _, seconds in BACK.findall(struck.said)]
    assert len(recoveries) >= len(BREAKS)
    assert max(recoveries) < RECOVERY_S
    assert total(struck, "env/lost") == 0


def test_no_episode_on_a_broken_desktop_is_scored(struck):
    iterations = len(struck.metrics)
    assert [line["rollout/episodes"] for line in struck.metrics] == [EPISODES] * iterations
    assert total(struck, "env/episodes") == EPISODES * iterations  # those that ended on a desktop without fault
    assert total(struck, "rollout/retried_episodes") >= len(BREAKS)
    assert total(struck, "rollout/dropped_episodes") == total(struck, "rollout/dropped_groups") == 0
    store = TrajectoryStore(struck.directory / "trajectories")
    for iteration in range(iterations):
        names = [trajectory.id for trajectory in store.read("train", iteration)]
        assert len(names) == len(set(names)) == EPISODES


def test_desktops_of_a_killed_run_end_with_it(struck):
    iterations = len(struck.metrics)
    struck.start("resume=auto", f"iterations={iterations + 1}")
    struck.wait_for_rollout(iterations)
    left = containers_of(struck)
    assert len(left) == DESKTOPS
    struck.process.send_signal(signal.SIGKILL)
    assert struck.wait() == -signal.SIGKILL
    struck.assert_gone_within(10)
    assert not set(left) & set(docker("ps", "--all", "--quiet", "--no-trunc").split())

    assert struck.go("resume=auto", f"iterations={iterations + 1}") == 0, struck.said
    assert containers_of(struck) == []
    struck.assert_nothing_left()


def containers_of(run: Run) -> list[str]:
    """The desktops of the process that the run started last, newest first; its session is named after it."""
    assert run.process is not None
    listed = docker("ps", "--all", "--no-trunc", "--format", '{{.ID}} {{.Label "arpo.session"}}').splitlines()
    pairs = [line.split() for line in listed]
    return [name for name, *session in pairs if session and session[0].startswith(f"{run.process.pid}-")]


def total(run, name):
    return sum(line[name] for line in run.metrics if name in line)


def engine():
    """The daemon behind DOCKER_HOST, where it is one that docker/start_engine.sh has started."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "dockerd" and os.environ.get("DOCKER_HOST") in process.info["cmdline"]:
            return process
    return None


def restart_the_engine():
    """End the daemon as `kill -9` does, and start it again; desktops live on, but cannot be reached meanwhile."""
    daemon = engine()
    daemon.kill()
    psutil.wait_procs([daemon])
    directory = Path(os.environ["DOCKER_HOST"].removeprefix("unix://")).parent
    subprocess.run(["bash", ROOT / "docker" / "start_engine.sh", directory], check=True, stdout=subprocess.DEVNULL)
