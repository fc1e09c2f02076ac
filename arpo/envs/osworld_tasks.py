"""OSWorld's task files as tasks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task


def osworld_tasks(root: str | Path | None, ids: Mapping[str, Sequence[str]]) -> list[Task]:
    """Load tasks by domain and id from OSWorld's `evaluation_examples` folder.

    The id of a task is its file's name: OSWorld has fifteen files whose inner id belongs to another task.

    Raises:
        ConfigError: When the folder is not there.
        TaskFormatError: When a file is missing or not a task; names the file and the key.
    """
    if root is None or not Path(root).is_dir():
        raise ConfigError(
            f"OSWorld's task files are not at {root}: clone OSWorld and set ARPO_OSWORLD_TASKS (or paths.osworld) to "
            "its evaluation_examples folder"
        )
    return [
        _load(Path(root) / "examples" / domain / f"{task_id}.json", domain)
        for domain in ids
        for task_id in ids[domain]
    ]


def _load(path: Path, domain: str) -> Task:
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
    return Task(id=path.stem, instruction=record["instruction"], domain=domain, config=record)
