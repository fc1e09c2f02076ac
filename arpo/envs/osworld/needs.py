"""The needs of OSWorld's tasks beside a desktop with its applications: files, packages, VS Code, the live web.

A container can hold LibreOffice, Chrome, GIMP, VLC and Thunderbird, and has no network. Task files say most of what is
needed, and not what an instruction asks for: those tasks are listed here.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from arpo.envs.guest.tasks import as_list, steps_of
from arpo.envs.osworld.files import files_of
from arpo.envs.osworld.tasks import obstacles, osworld_tasks
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
    """A grader that does not run here."""
    ACCOUNT = "an account"


IN_A_CONTAINER = (Need.NOTHING, Need.FILES, Need.PACKAGE)
"""What containers of the full image meet, once the files are there."""
ON_THE_WEB: Mapping[str, str] = {
    "15c3b339-88f7-4a86-ab16-e71c58dcb01e": "signs in at outlook.com",
    "3c8f201a-009d-4bbe-8b65-a6f8b35bb57f": "downloads an image",
    "42f4d1c7-4521-4161-b646-0a8934e36081": "installs an extension of VS Code",
    "4e60007a-f5be-4bfc-9723-c39affa0a6d3": "installs an extension of VS Code",
    "94d95f96-9699-4208-98ba-3c3119edf9c2": "installs Spotify",
    "bba3381f-b5eb-4439-bd9e-80c22218d5a7": "plays a video of YouTube",
    "eabc805a-bfcf-4460-b250-ac92135819f6": "installs an extension of VS Code",
}
"""Tasks that need the live web by their instruction alone."""
OFF_THE_WEB: Mapping[str, str] = {
    "6f4073b8-d8ea-4ade-8a18-c5d1d5d5aa9a": "asks where conferences were, which is known",
    "a74b607e-6bb5-4ea8-8a7c-5d97c7bbcd2a": "installs an extension of Chrome from the disk",
    "b337d106-053f-4d37-8da0-7f9c4043a66b": "sets an option of vim, which is known",
    "ce2b64a2-ddc1-4f91-8c7d-a88be7121aac": "asks which mountains are in pictures",
}
"""Tasks of several applications, Chrome among them, that can be solved without the web."""
_INSTALLED = re.compile(r"\b(?:apt|apt-get|pip3?)\s+install\s+(?:-\S+\s+)*([\w.+-]+)")
_FROM_MARKETPLACE = re.compile(r"--install-extension\s+(?!\S*\.vsix)\S")


def need_of(task: Task) -> Need:
    """Return what is the hardest to come by of all that a task needs; a file of one's own may say it, as `needs`."""
    refused = obstacles(task.config)
    if refused:
        return Need.ACCOUNT if any("account" in obstacle.reason for obstacle in refused) else Need.GRADER
    said = task.config.get("needs")
    if said is not None:
        return _said(task, said)
    if _is_on_the_web(task):
        return Need.WEB
    if {"vscode", "vs_code"} & _applications(task.config):
        return Need.VS_CODE
    if packages_of(task.config):
        return Need.PACKAGE
    return Need.FILES if files_of(task) else Need.NOTHING


def _said(task: Task, said: object) -> Need:
    if said not in list(Need):
        raise TaskFormatError(f"task {task.id}: needs={said!r} must be one of {', '.join(Need)}")
    return Need(str(said))


def tasks_by_need(
    root: str | Path | None,
    ids: Mapping[str, Sequence[str]],
    *,
    needs: Sequence[str],
    skip_unsupported: bool = True,
) -> list[Task]:
    """Load those of some of OSWorld's tasks that need certain things.

    Args:
        root: OSWorld's `evaluation_examples` folder.
        ids: File names by domain.
        needs: Values of `Need`.
        skip_unsupported: Leave out tasks that cannot run here, whatever they need.
    """
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
