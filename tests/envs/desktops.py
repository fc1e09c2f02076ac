"""What the tests of real desktops share: one reason to skip, tasks, and desktops that are surely removed."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache

import pytest
import tenacity

from arpo.host.containers import OWN_ENGINE
from arpo.types import Task

IMAGE = os.environ.get("ARPO_TESTS_IMAGE", "arpo/desktop:plain")
"""What faults and walls are tested on: the full image has to bear the same."""
OFFICE = "arpo/desktop:office"
FULL = "arpo/desktop:full"

START_LIMIT_S = 120.0
"""For a desktop on a busy machine: one whose container ends is noticed at once, however long this is."""

QUICK = {
    "image": IMAGE,
    "quiet_s": 0.05,
    "settle_limit_s": 2.0,
    "wait_s": 0.05,
    "screen": (640, 480),
    "start_timeout_s": START_LIMIT_S,
}
"""Desktops for tests: small, and looked at soon."""


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0


@cache
def missing(image: str) -> str:
    """Why tests with this image cannot run here; empty where they can."""
    if shutil.which("docker") is None:
        return "no Docker engine: there is no `docker` command; docker/start_engine.sh installs and starts one"
    if not _answers() and OWN_ENGINE.is_socket():
        os.environ.setdefault("DOCKER_HOST", f"unix://{OWN_ENGINE}")  # the one of `make desktop`, as ARPO itself looks
    if not _answers():
        return "no Docker engine answers `docker info`; docker/start_engine.sh starts one"
    if not image:
        return ""
    found = subprocess.run(["docker", "image", "inspect", image], capture_output=True, timeout=20, check=False)
    variant = image.partition(":")[2]
    return "" if found.returncode == 0 else f"no image {image}; docker/build_image.sh {variant} builds it"


needs_desktop, needs_office, needs_full, needs_cells = (
    [pytest.mark.docker, pytest.mark.skipif(bool(missing(image)), reason=missing(image))]
    for image in (IMAGE, OFFICE, FULL, "")
)


def one_and_others(rows):
    """The rows of a matrix, of which all but the first are for who has time."""
    first, *others = rows
    return [first, *(pytest.param(row, marks=pytest.mark.long) for row in others)]


def editor_task(**changes: object) -> Task:
    """Add a line to a text and save it."""
    return task(
        config=[
            {"type": "execute", "parameters": {"command": "printf 'bread\\n' > ~/list.txt", "shell": True}},
            {"type": "launch", "parameters": {"command": "mousepad ~/list.txt"}},
        ],
        windows=["list.txt"],
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_file", "path": "~/list.txt"},
            "expected": {"type": "rule", "rules": {"expected": "bread\nmilk\n"}},
        },
        solution=["hotkey(key='ctrl end')", "type(content='milk\\n')", "hotkey(key='ctrl s')"],
        **changes,
    )


def task(**config: object) -> Task:
    return Task("desktop/test", "Add the line milk and save.", domain="mousepad", config=config)


def docker(*arguments: str, accept: Sequence[int] = (0,)) -> str:
    """Run the docker command and return what it says; an exit status other than those of `accept` fails the test."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode in accept, f"docker {' '.join(arguments)}: exit status {done.returncode}: {said}"
    return done.stdout


def kill(container):
    docker("kill", container)


@tenacity.retry(stop=tenacity.stop_after_attempt(10), wait=tenacity.wait_fixed(0.1), reraise=True)
def pause(container):
    docker("pause", container)  # with version 1 of cgroups, a busy container cannot be frozen every time


def disconnect(container):
    docker("network", "disconnect", "bridge", container)


def freeze_the_x_server(container):
    run_as_root(container, "pkill -STOP Xvfb")


def kill_the_server(container):
    run_as_root(container, "pkill -KILL -f ^python3.*server.py")


@tenacity.retry(stop=tenacity.stop_after_attempt(10), wait=tenacity.wait_fixed(0.1), reraise=True)
def run_as_root(container, command):
    """Run a command in a desktop as nobody in it could; a reset in place ends it too, even half started."""
    docker("exec", "--user", "root", container, "sh", "-c", command, accept=(0, 128 + signal.SIGKILL))


BREAKS = [kill, pause, disconnect, freeze_the_x_server, kill_the_server]
"""Whatever can break in a real desktop without its agent; each breaks the container of this id."""
