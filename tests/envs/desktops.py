"""What the tests of real desktops share: one reason to skip, tasks, and desktops that are surely removed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

import pytest

from arpo.host.containers import OWN_ENGINE
from arpo.types import Task

IMAGE = "arpo/desktop:plain"
OFFICE = "arpo/desktop:office"

QUICK = {"quiet_s": 0.05, "settle_limit_s": 2.0, "wait_s": 0.05, "screen": (640, 480)}
"""Desktops for tests: small, and looked at soon."""


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False).returncode == 0


@cache
def missing(image: str = IMAGE) -> str:
    """Why tests with this image cannot run here; empty where they can."""
    if shutil.which("docker") is None:
        return "no Docker engine: there is no `docker` command; docker/start_engine.sh installs and starts one"
    if not _answers() and OWN_ENGINE.is_socket():
        os.environ.setdefault("DOCKER_HOST", f"unix://{OWN_ENGINE}")  # the one of `make desktop`, as ARPO itself looks
    if not _answers():
        return "no Docker engine answers `docker info`; docker/start_engine.sh starts one"
    found = subprocess.run(["docker", "image", "inspect", image], capture_output=True, timeout=20, check=False)
    variant = image.partition(":")[2]
    return "" if found.returncode == 0 else f"no image {image}; docker/build_image.sh {variant} builds it"


needs_desktop = [pytest.mark.docker, pytest.mark.skipif(bool(missing()), reason=missing())]
needs_office = [pytest.mark.docker, pytest.mark.skipif(bool(missing(OFFICE)), reason=missing(OFFICE))]


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
    """A task of these keys."""
    return Task("desktop/test", "Add the line milk and save.", domain="mousepad", config=config)


def docker(*arguments: str, accept: Sequence[int] = (0,)) -> str:
    """Run the docker command and return what it says; an exit status other than those of `accept` fails the test."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode in accept, f"docker {' '.join(arguments)}: exit status {done.returncode}: {said}"
    return done.stdout
