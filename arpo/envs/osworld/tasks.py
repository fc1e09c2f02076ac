"""OSWorld's task files as tasks."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.envs.osworld.support import Obstacle, obstacles
from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task

log = logging.getLogger(__name__)


def osworld_tasks(
    root: str | Path | None, ids: Mapping[str, Sequence[str]], *, skip_unsupported: bool = False
) -> list[Task]:
    """Load tasks by domain and id from OSWorld's `evaluation_examples` folder.

    The id of a task is its file's name: OSWorld has fifteen files whose inner id belongs to another task.

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
            f"OSWorld's task files are not at {root}: clone OSWorld and set ARPO_OSWORLD_TASKS (or paths.osworld) to "
            "its evaluation_examples folder"
        )
    tasks, refused = [], []
    for domain, names in ids.items():
        for name in names:
            path = Path(root) / "examples" / domain / f"{name}.json"
            task, found = _load(path, domain)
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


def _load(path: Path, domain: str) -> tuple[Task, list[Obstacle]]:
    try:
        record: Any = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise TaskFormatError(f"{path} does not exist; is this OSWorld's evaluation_examples folder?") from error
    except ValueError as error:
        raise TaskFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TaskFormatError(f"{path} holds a {type(record).__name__}, a task is an object")
    for key, kind in (("instruction", str), ("evaluator", dict)):
        if not isinstance(record.get(key), kind):
            raise TaskFormatError(f"{path}: key {key!r} must be a {kind.__name__}, got {record.get(key)!r}")
    try:
        found = obstacles(record)
    except TaskFormatError as error:
        raise TaskFormatError(f"{path}: {error}") from error
    infeasible = record["evaluator"]["func"] == "infeasible"
    return Task(path.stem, record["instruction"], domain=domain, config=record, infeasible=infeasible), found
