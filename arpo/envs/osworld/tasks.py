"""OSWorld's tasks, and the parts of their files that run here: set-up steps, metric functions and getters, by name.

A task that asks for anything else is known before a machine starts, and by its file and key.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.envs.guest import tasks as files
from arpo.envs.guest.tasks import Obstacle, as_list, load_task
from arpo.envs.osworld.setup import OSWorldSetup
from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task

log = logging.getLogger(__name__)

CLONE = "https://github.com/FanbinLu/OSWorld at commit 7a6409d"
"""What ARPO's published code uses; a newer OSWorld names metric functions that are not in the lists below."""

KNOWN: Mapping[str, Any] = json.loads(Path(__file__).with_name("known.json").read_text(encoding="utf-8"))
"""What a program cannot read off OSWorld's files; `arpo/envs/osworld/needs.py` says what its other keys are."""
FUNCTIONS, GETTERS = frozenset(KNOWN["functions"]), frozenset(KNOWN["getters"])
"""Metric functions and getters of `desktop-env` that the packages of `requirements/osworld.txt` can run."""
LISTS = Path(__file__).with_name("lists")
Ids = Mapping[str, Sequence[str]] | str
NOT_SUPPORTED: Mapping[str, str] = {
    **files.NOT_SUPPORTED,
    "googledrive_file": "it needs a Google account",
    "compare_image_text": "it reads text in pictures with a neural network of its own (easyocr)",
}


def osworld_tasks(root: str | Path | None, ids: Ids, *, skip_unsupported: bool = False) -> list[Task]:
    """Load tasks by domain and id from OSWorld's `evaluation_examples` folder, the root.

    Args:
        ids: File names by domain, or a file with them: of `lists/`, or a path of one like OSWorld's `test_all.json`.
        skip_unsupported: Leave out, and name in the log, tasks that need what we do not have, such as an account.
    """
    tasks, refused = [], []
    for task in read_tasks(root, ids):
        path = Path(str(root)) / "examples" / task.domain / f"{task.id}.json"
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


def read_tasks(root: str | Path | None, ids: Ids) -> list[Task]:
    """Read tasks, also those that cannot run here; arguments and errors are those of `osworld_tasks`."""
    if root is None or not Path(root).is_dir():
        trouble = "paths.osworld is not set" if root is None else f"OSWorld's task files are not at {root}"
        remedy = "and set ARPO_OSWORLD_TASKS (or paths.osworld) to its evaluation_examples folder"
        raise ConfigError(f"{trouble}: clone {CLONE} {remedy}")
    if isinstance(ids, str):
        if not (LISTS / ids).is_file():
            raise ConfigError(f"ids={ids} is no file: name one of {LISTS}, or the path of another one")
        ids = dict(json.loads((LISTS / ids).read_text(encoding="utf-8")))
    return [load_task(root, domain, name) for domain, names in ids.items() for name in names]


def obstacles(record: Mapping[str, Any]) -> list[Obstacle]:
    """Return everything in a task file that cannot run here, in the order of the file."""
    evaluator = record["evaluator"]
    found = list(files.step_obstacles(record, OSWorldSetup.STEPS))
    names = evaluator.get("func")
    if not isinstance(names, str | list) or not names:
        raise TaskFormatError(f"key 'evaluator.func' must be a name or a list of names, got {names!r}")
    named = [("evaluator.func", name, FUNCTIONS) for name in as_list(names)]
    for key in ("result", "expected"):
        for getter in filter(None, as_list(evaluator.get(key))):
            if not isinstance(getter, Mapping) or not isinstance(getter.get("type"), str):
                raise TaskFormatError(f"key 'evaluator.{key}' must be a getter with a type, got {getter!r}")
            named.append((f"evaluator.{key}.type", getter["type"], GETTERS))
    unknown = f"it is not known here, which reads {CLONE}"
    return found + [
        Obstacle(key, name, NOT_SUPPORTED.get(name, unknown)) for key, name, known in named if name not in known
    ]
