"""The tasks of our own desktops, in OSWorld's format, and what they have beside it: windows and solutions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo.envs.desktop.task import read_task
from arpo.envs.osworld.tasks import osworld_tasks
from arpo.types import Task

ROOT = Path(__file__).parent / "desktop32"


def desktop_tasks(ids: Mapping[str, Sequence[str]]) -> list[Task]:
    """Load tasks of `desktop32` by application and id.

    Raises:
        TaskFormatError: When a file is missing, or says what no desktop of ours can do.
    """
    tasks = osworld_tasks(ROOT, ids)
    for task in tasks:
        read_task(task)
    return tasks
