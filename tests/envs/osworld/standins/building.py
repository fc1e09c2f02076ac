"""From the ids of tasks to stand-ins in a cache."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.tasks import read_tasks
from arpo.types import Task
from tests.envs.osworld.standins import BUILDERS
from tests.envs.osworld.support import FILES, PYTHON, ROOT


def tasks_with_standins(starts: Sequence[str] = ()) -> list[Task]:
    paths = sorted((FILES / "examples").glob("*/*.json"))
    wanted = [path for path in paths if path.stem in BUILDERS and path.stem.startswith(tuple(starts or [""]))]
    return [task for path in wanted for task in read_tasks(FILES, {path.parent.name: [path.stem]})]


def build(tasks: Sequence[Task], cache: Path) -> None:
    places = FileCache(cache).place
    make_files({task.id: [places(url, task.id, name) for url, name in files_of(task)] for task in tasks})
    lacking = [(task.id, file) for task in tasks for file in FileCache(cache).lacking(task)]
    assert not lacking


def make_files(paths: Mapping[str, Sequence[Path]]) -> None:
    command, asked = [PYTHON, "-m", "tests.envs.osworld.standins.make"], json.dumps(paths, default=str).encode()
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, input=asked, cwd=ROOT, env=environment, check=True)
