"""The script that installs an engine, on a machine where nothing is what it seems."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docker" / "start_engine.sh"

DOCKER = """#!/bin/sh
[ -z "$DOCKER_HOST" ] && [ -e "$MARK" ]
"""
APT = """#!/bin/sh
case "$*" in *install*) : > "$MARK" ;; esac
"""
"""With systemd, installing the package starts an engine at the usual place."""


@pytest.fixture
def machine(tmp_path):
    """A PATH without a daemon; returns the environment and the file that is there while an engine answers."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "mkdir"):
        (programs / name).symlink_to(shutil.which(name))
    for name, text in (("docker", DOCKER), ("apt-get", APT)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {"PATH": str(programs), "MARK": str(tmp_path / "mark")}, tmp_path / "mark"


def run(environment, directory):
    done = subprocess.run(
        ["bash", str(SCRIPT), str(directory)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout


USUAL = (0, "export DOCKER_HOST=unix:///var/run/docker.sock\n")


def test_an_engine_that_answers_is_used(machine, tmp_path):
    environment, mark = machine
    mark.touch()
    assert run(environment, tmp_path / "engine") == USUAL
    assert run({**environment, "DOCKER_HOST": "unix:///nowhere"}, tmp_path / "engine") == USUAL


def test_an_engine_that_came_with_the_package_is_used(machine, tmp_path):
    environment, _ = machine
    assert run(environment, tmp_path / "engine") == USUAL
    assert not os.path.exists(tmp_path / "engine")
