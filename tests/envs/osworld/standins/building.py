"""From the ids of tasks to stand-ins in a cache."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from arpo.envs.osworld.files import FileCache, files_of
from arpo.envs.osworld.tasks import read_tasks
from arpo.types import Task
from tests.envs.osworld.standins import BUILDERS, ROOT
from tests.envs.osworld.task_files import FILES
from tests.envs.osworld.test_grader import PYTHON

REPOSITORY = ROOT.parents[3]


def tasks_with_standins(starts: Sequence[str] = ()) -> list[Task]:
    """The tasks that have a builder, of those whose ids begin so."""
    paths = sorted((FILES / "examples").glob("*/*.json"))
    wanted = [path for path in paths if path.stem in BUILDERS and path.stem.startswith(tuple(starts or [""]))]
    return [task for path in wanted for task in read_tasks(FILES, {path.parent.name: [path.stem]})]


def build(tasks: Sequence[Task], cache: Path) -> None:
    """Make the files of tasks where a cache looks for them."""
    places = FileCache(cache).place
    wanted = {task.id: [str(places(url, task.id, name)) for url, name in files_of(task)] for task in tasks}
    subprocess.run(
        [PYTHON, "-m", "tests.envs.osworld.standins.make"],
        input=json.dumps(wanted).encode(),
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
    )
    lacking = [(task.id, file) for task in tasks for file in FileCache(cache).lacking(task)]
    assert not lacking
