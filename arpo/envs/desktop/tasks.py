"""The tasks of our own desktops: OSWorld's format with windows and solutions beside it, looked through when loaded."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from arpo.envs.desktop.templates.lists import instance_of
from arpo.envs.desktop.templates.template import HOME, Home, Instance
from arpo.envs.guest.certificate import Line, read_script
from arpo.envs.guest.client import Guest, HangingProgramError
from arpo.envs.guest.setup import TaskSetup
from arpo.envs.guest.tasks import as_list, load_task, step_obstacles
from arpo.errors import TaskFormatError
from arpo.types import Task

log = logging.getLogger(__name__)

ROOT = Path(__file__).parent / "desktop32"

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DesktopTask:
    """The content of a task file, checked."""

    config: tuple[Parameters, ...]
    windows: tuple[str, ...]
    """Titles, or parts of them, of the windows that show that the set-up is done. A key of ours."""
    solution: tuple[Line, ...]
    """A script that solves it, in screen pixels. A key of ours; empty where there is none."""
    postconfig: tuple[Parameters, ...] = ()
    checks: tuple[Callable[[Guest], bool], ...] = ()
    """Empty for an infeasible task."""
    any_check: bool = False
    """True if one check that holds is enough (`conj: or`)."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """As in `Instance`; there before the set-up."""
    done: Callable[[Home], bool] | None = None
    """The checker of a template, in the place of `checks`."""

    @property
    def infeasible(self) -> bool:
        """True if the right answer is to say that it cannot be done."""
        return not self.checks and self.done is None


def desktop_tasks(ids: Mapping[str, Sequence[str]]) -> list[Task]:
    """Load tasks of `desktop32` by application and id."""
    tasks = [load_task(ROOT, application, name) for application, names in ids.items() for name in names]
    for task in tasks:
        read_task(task)
    return tasks


def read_task(task: Task) -> DesktopTask:
    """Return the content of a task."""
    config = task.config
    if "template" in config:
        return _of_template(instance_of(task))
    evaluator = config.get("evaluator")
    if not isinstance(evaluator, Mapping) or "func" not in evaluator:
        raise TaskFormatError(f"task {task.id!r}: key 'evaluator' must be an object with 'func', got {evaluator!r}")
    place = ""
    try:
        refused = list(step_obstacles(config, TaskSetup.STEPS))
        checks = _checks(evaluator)
        place = "solution "
        solution = read_script(config.get("solution", ()))
    except TaskFormatError as error:
        raise TaskFormatError(f"task {task.id!r}: {place}{error}") from error
    if refused:
        raise TaskFormatError(f"task {task.id!r}: {refused[0]}")
    return DesktopTask(
        config=tuple(config.get("config", ())),
        windows=tuple(str(title) for title in config.get("windows", ())),
        postconfig=tuple(evaluator.get("postconfig", ())),
        checks=checks,
        any_check=evaluator.get("conj", "and") == "or",
        solution=solution,
    )


def run_checks(task: DesktopTask, guest: Guest) -> float:
    """Return 1.0 when the checks hold, else 0.0."""
    if task.done is not None:
        return float(task.done(Home(guest)))
    held = (check(guest) for check in task.checks)
    return float(any(held) if task.any_check else all(held))


def place(guest: Guest, files: Mapping[str, bytes]) -> None:
    """Write the files of a template into the home directory."""
    folders = {path.rpartition("/")[0] for path in files} - {""}
    if folders:
        guest.execute(["mkdir", "-p", *(f"{HOME}/{folder}" for folder in sorted(folders))])
    for path, content in files.items():
        if not path.endswith("/"):
            guest.upload(f"{HOME}/{path}", content)


def _command_line(guest: Guest, result: Parameters) -> str:
    shell = bool(result.get("shell", False))
    try:
        return guest.execute(result["command"], shell=shell).output
    except HangingProgramError as error:  # such as one that reads a pipe, which the agent put in the place of a file
        log.info("a check reads nothing: %s", error)
        return ""


RESULTS: Mapping[str, Callable[[Guest, Parameters], str]] = {
    "vm_command_line": _command_line,
    "vm_file": lambda guest, result: (guest.file(result["path"]) or b"").decode(errors="replace"),
}
"""Functions that fetch the text a check is about, by OSWorld's names; a file that is not there reads as empty."""


def _check_include_exclude(found: str, rules: Parameters) -> bool:
    wanted, unwanted = rules.get("include", ()), rules.get("exclude", ())
    return all(text in found for text in wanted) and not any(text in found for text in unwanted)


METRICS: Mapping[str, Callable[[str, Parameters], bool]] = {
    "exact_match": lambda found, rules: found == str(rules["expected"]),
    "check_include_exclude": _check_include_exclude,
}


def _holds(metric: str, result: Parameters, rules: Parameters, guest: Guest) -> bool:
    return METRICS[metric](RESULTS[result["type"]](guest, result), rules)


def _checks(evaluator: Parameters) -> tuple[Callable[[Guest], bool], ...]:
    if evaluator["func"] == "infeasible":
        return ()
    metrics, results, expected = (as_list(evaluator.get(key)) for key in ("func", "result", "expected"))
    if not len(metrics) == len(results) == len(expected):
        raise TaskFormatError("evaluator.func, result and expected differ in length")
    checks = []
    for metric, result, right in zip(metrics, results, expected, strict=True):
        if metric not in METRICS:
            raise TaskFormatError(f"evaluator.func {metric!r} is unknown; {', '.join(METRICS)} are not")
        if not isinstance(result, Mapping) or result.get("type") not in RESULTS:
            raise TaskFormatError(f"evaluator.result needs a type of {', '.join(RESULTS)}, is {result!r}")
        if not isinstance(right, Mapping) or right.get("type") != "rule":
            raise TaskFormatError(f"evaluator.expected must have the type 'rule', is {right!r}")
        checks.append(partial(_holds, metric, result, right["rules"]))
    return tuple(checks)


def _of_template(instance: Instance) -> DesktopTask:
    return DesktopTask(
        config=({"type": "launch", "parameters": {"command": [*instance.launch]}},),
        windows=(instance.window,),
        solution=read_script(instance.solution),
        files=instance.files,
        done=instance.done,
    )
