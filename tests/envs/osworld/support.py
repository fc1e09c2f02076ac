"""OSWorld's task files and graders, where a machine has them, and the parts that tests make evaluators of."""

import json
import os
import socket
from functools import partial
from pathlib import Path

import pytest

from arpo.envs.osworld.grader import GuestDoors
from arpo.envs.osworld.tasks import LISTS
from tests.envs.desktops import needs_cells
from tests.envs.osworld.guest import HOME

ROOT = Path(__file__).parents[3]
FILES = Path(os.environ.get("ARPO_OSWORLD_TASKS", ROOT.parent / "shared" / "osworld"))
needs_files = pytest.mark.skipif(
    not (FILES / "examples").is_dir(),
    reason=f"there are no OSWorld task files at {FILES}: set ARPO_OSWORLD_TASKS to evaluation_examples of a clone",
)
PYTHON = Path(os.environ.get("ARPO_OSWORLD_PYTHON", ROOT / ".venv-osworld" / "bin" / "python"))
needs_graders = pytest.mark.skipif(
    not PYTHON.exists(), reason=f"OSWorld's graders are not installed at {PYTHON}: run `make osworld`"
)


def needs_judging(function):
    """Mark a test that judges: it needs OSWorld's graders, and an engine for the cells that they run in."""
    for mark in (needs_graders, *needs_cells):
        function = mark(function)
    return function


def ids_of(name):
    return json.loads((LISTS / f"{name}.json").read_text())


def doors(guest, vlc=None):
    here, there = (partial(socket.create_connection, ("127.0.0.1", each.port)) for each in (guest, vlc or guest))
    return GuestDoors(here, here, there)


def vm_file(name, dest=None, folder=HOME):
    return {"type": "vm_file", "path": f"{folder}/{name}", "dest": dest or name}


def cloud_file(name):
    return {"type": "cloud_file", "path": f"http://127.0.0.1:9/{name}", "dest": name}


def rule(**rules):
    return {"type": "rule", "rules": rules}


def said(text):
    return {"type": "vm_command_line", "command": ["echo", text]}


def includes(*words):
    return rule(include=list(words), exclude=[])
