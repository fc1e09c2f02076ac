"""Lists of OSWorld's tasks."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo.envs.guest.tasks import load_task
from arpo.envs.osworld.support import CLONE, obstacles
from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task

log = logging.getLogger(__name__)


def osworld_tasks(
    root: str | Path | None, ids: Mapping[str, Sequence[str]], *, skip_unsupported: bool = False
) -> list[Task]:
    """Load tasks by domain and id from OSWorld's `evaluation_examples` folder.

    Args:
        root: The folder.
        ids: File names by domain.
        skip_unsupported: Leave out, and name in the log, tasks that need what we do not have, such as an account.

    Raises:
        ConfigError: When the folder is not there.
        TaskFormatError: When a file is missing, or not a task, or cannot run here; names the file and the key.
    """
    if root is None or not Path(root).is_dir():
        raise ConfigError(
            f"OSWorld's task files are not at {root}: clone {CLONE} and set ARPO_OSWORLD_TASKS (or paths.osworld) "
            "to its evaluation_examples folder"
        )
    tasks, refused = [], []
    for domain, names in ids.items():
        for name in names:
            task = load_task(root, domain, name)
            path = Path(root) / "examples" / domain / f"{name}.json"
            try:
                found = obstacles(task.config)
            except TaskFormatError as error:
                raise TaskFormatError(f"{path}: {error}") from error
            refused += [f"{path}: {obstacle}" for obstacle in found]
            if not found:
                tasks.append(task)
    if refused and not skip_unsupported:
        lines = "\n".join(f"  - {line}" for line in refused)
        raise TaskFormatError(
            f"these task files cannot run here:\n{lines}\nTake them from the list, or set skip_unsupported of the list"
        )
    for line in refused:
        log.warning("left out: %s", line)
    return tasks
