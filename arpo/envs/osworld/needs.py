"""The needs of OSWorld's tasks beside a desktop with its applications: files, packages, VS Code, the live web.

A container can hold LibreOffice, Chrome, GIMP, VLC and Thunderbird, and has no network. Task files show most needs,
and not what an instruction asks for: `known.json` lists those tasks.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from arpo.envs.guest.tasks import as_list, steps_of
from arpo.envs.osworld.files import files_of
from arpo.envs.osworld.tasks import KNOWN, Ids, obstacles, osworld_tasks
from arpo.errors import ConfigError, TaskFormatError
from arpo.types import Task


class Need(StrEnum):
    """The one thing that a task needs and that is the hardest to come by, hardest last."""

    NOTHING = "nothing"
    FILES = "files"
    PACKAGE = "a package"
    VS_CODE = "VS Code"
    WEB = "live web"
    GRADER = "a grader"
    ACCOUNT = "an account"


IN_A_CONTAINER = (Need.NOTHING, Need.FILES, Need.PACKAGE)
"""What containers of the full image meet, once the files are there."""
ON_THE_WEB: Mapping[str, str] = KNOWN["on_the_web"]
"""Tasks that need the live web by their instruction alone, and why."""
OFF_THE_WEB: Mapping[str, str] = KNOWN["off_the_web"]
"""Tasks of several applications, Chrome among them, that can be solved without the web."""
_INSTALLED = re.compile(r"\b(?:apt|apt-get|pip3?)\s+install\s+(?:-\S+\s+)*([\w.+-]+)")
_FROM_MARKETPLACE = re.compile(r"--install-extension\s+(?!\S*\.vsix)\S")


def need_of(task: Task) -> Need:
    """Return the need of a task that is hardest to meet; a task file of one's own may have it as its key `needs`."""
    refused = obstacles(task.config)
    if refused:
        return Need.ACCOUNT if any("account" in obstacle.reason for obstacle in refused) else Need.GRADER
    own = task.config.get("needs")
    if own is not None:
        if own not in list(Need):
            raise TaskFormatError(f"task {task.id}: needs={own!r} must be one of {', '.join(Need)}")
        return Need(own)
    if _is_on_the_web(task):
        return Need.WEB
    if {"vscode", "vs_code"} & _applications(task.config):
        return Need.VS_CODE
    if packages_of(task.config):
        return Need.PACKAGE
    return Need.FILES if files_of(task) else Need.NOTHING


def tasks_by_need(
    root: str | Path | None, ids: Ids, *, needs: Sequence[str], skip_unsupported: bool = True
) -> list[Task]:
    """Load those of some of OSWorld's tasks that need certain things; the other arguments are of `osworld_tasks`."""
    wanted = read_needs(needs)
    return [task for task in osworld_tasks(root, ids, skip_unsupported=skip_unsupported) if need_of(task) in wanted]


def read_needs(needs: object) -> list[Need]:
    """Return the needs that a configuration names."""
    names = list(needs) if isinstance(needs, Sequence) and not isinstance(needs, str) else []
    if not names or any(name not in list(Need) for name in names):
        raise ConfigError(f"needs={needs} must be some of [{', '.join(Need)}]")
    return [Need(name) for name in names]


def packages_of(record: Mapping[str, Any]) -> list[str]:
    """Return the packages that the steps of a task install, which an image without a network must have."""
    return _INSTALLED.findall(_commands(record))


def _is_on_the_web(task: Task) -> bool:
    steps, evaluator = steps_of(task.config), task.config["evaluator"]
    getters = [getter["type"] for key in ("result", "expected") for getter in as_list(evaluator.get(key)) if getter]
    looks_up = task.domain == "multi_apps" and "chrome" in _applications(task.config) and task.id not in OFF_THE_WEB
    return (
        looks_up
        or task.id in ON_THE_WEB
        or any(step["type"] == "chrome_open_tabs" for step in steps)
        or "info_from_website" in getters
        or bool(_FROM_MARKETPLACE.search(_commands(task.config)))
    )


def _applications(record: Mapping[str, Any]) -> set[str]:
    return {str(name).lower() for name in record.get("related_apps", [])}


def _commands(record: Mapping[str, Any]) -> str:
    commands = [as_list(step["parameters"].get("command", "")) for step in steps_of(record)]
    return "\n".join(" ".join(map(str, command)) for command in commands)
