"""OSWorld's task files, where a machine has them, and the lists of them that come with the code."""

import json
import os
from pathlib import Path

import pytest

from arpo.envs.osworld.tasks import LISTS

ROOT = Path(__file__).parents[3]
FILES = Path(os.environ.get("ARPO_OSWORLD_TASKS", ROOT.parent / "shared" / "osworld"))
needs_files = pytest.mark.skipif(
    not (FILES / "examples").is_dir(),
    reason=f"there are no OSWorld task files at {FILES}: set ARPO_OSWORLD_TASKS to evaluation_examples of a clone",
)


def ids_of(name):
    return json.loads((LISTS / f"{name}.json").read_text())
