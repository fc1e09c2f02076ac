"""A task of our desktops in OSWorld's format: set-up steps and checkers, looked through before any of them runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.agent.actions import Action
from arpo.agent.parser import parse_action
from arpo.envs.guest.client import Execution, Guest
from arpo.errors import ActionParseError, EnvError, TaskFormatError
from arpo.types import Task

Parameters = Mapping[str, Any]

LONGEST_SLEEP_S = 30.0
WINDOW_TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 15.0
"""Much less than a pool gives a reset or an evaluation: what hangs is then one desktop, not its whole worker."""


@dataclass(frozen=True, slots=True)
class Check:
    """One metric, what it is about, and what is right."""

    metric: str
    result: Parameters
    rules: Parameters


@dataclass(frozen=True, slots=True)
class DesktopTask:
    """What a task file says, checked."""

    config: tuple[Parameters, ...]
    """Set-up steps, in order."""
    windows: tuple[str, ...]
    """Titles, or parts of them, of the windows that show that the set-up is done. A key of ours."""
    postconfig: tuple[Parameters, ...]
    """Steps before the checks."""
    checks: tuple[Check, ...]
    """Empty for an infeasible task."""
    any_check: bool
    """Whether one check that holds is enough (`conj: or`)."""
    solution: tuple[Action, ...]
    """A script that solves it, in screen pixels. A key of ours; empty where there is none."""

    @property
    def infeasible(self) -> bool:
        """Whether the right answer is to say that it cannot be done."""
        return not self.checks


def read_task(task: Task) -> DesktopTask:
    """Return what a task says.

    Raises:
        TaskFormatError: With the task and the key, if a key is missing or its value unknown.
    """
    config = task.config
    evaluator = config.get("evaluator")
    if not isinstance(evaluator, Mapping) or "func" not in evaluator:
        raise TaskFormatError(f"task {task.id!r}: key 'evaluator' must be an object with 'func', got {evaluator!r}")
    return DesktopTask(
        config=_steps(task, "config", config.get("config", ())),
        windows=tuple(str(title) for title in config.get("windows", ())),
        postconfig=_steps(task, "evaluator.postconfig", evaluator.get("postconfig", ())),
        checks=_checks(task, evaluator),
        any_check=evaluator.get("conj", "and") == "or",
        solution=tuple(_solution(task, text) for text in config.get("solution", ())),
    )


def run_steps(steps: Sequence[Parameters], guest: Guest) -> None:
    """Run set-up steps in order.

    Raises:
        EnvError: If the guest does not do one of them, or a command of theirs fails.
    """
    for step in steps:
        done = SETUP_STEPS[step["type"]](guest, step.get("parameters", {}))
        if done is not None and done.returncode != 0:
            raise EnvError("reset", f"set-up step {step} gave {done.returncode}: {done.error or done.output}")


def run_checks(task: DesktopTask, guest: Guest) -> float:
    """Return 1.0 when the checks hold, else 0.0.

    Raises:
        EnvError: If the guest does not say what they read.
    """
    for step in task.postconfig:  # a command may fail here: it meets whatever the agent has left
        SETUP_STEPS[step["type"]](guest, step.get("parameters", {}))
    held = (
        METRICS[check.metric](RESULTS[check.result["type"]](guest, check.result), check.rules) for check in task.checks
    )
    return float(any(held) if task.any_check else all(held))


def _execute(guest: Guest, parameters: Parameters) -> Execution:
    shell = bool(parameters.get("shell", False))
    return guest.execute(parameters["command"], shell=shell, timeout_s=COMMAND_TIMEOUT_S)


def _launch(guest: Guest, parameters: Parameters) -> None:
    guest.launch(parameters["command"], shell=bool(parameters.get("shell", False)))


def _sleep(_: Guest, parameters: Parameters) -> None:
    time.sleep(min(float(parameters["seconds"]), LONGEST_SLEEP_S))


def _activate_window(guest: Guest, parameters: Parameters) -> None:
    """Wait for the window first: a step before may just have launched it."""
    name = parameters["window_name"]
    guest.wait_for(lambda: name in " ".join(window.title for window in guest.windows()), name, WINDOW_TIMEOUT_S)
    guest.activate_window(**_window(parameters))


def _close_window(guest: Guest, parameters: Parameters) -> None:
    guest.close_window(**_window(parameters))


def _window(parameters: Parameters) -> dict[str, Any]:
    flags = {name: bool(parameters.get(name, False)) for name in ("strict", "by_class")}
    return {"name": parameters["window_name"], **flags}


SETUP_STEPS: Mapping[str, Callable[[Guest, Parameters], Execution | None]] = {
    "execute": _execute,
    "command": _execute,
    "launch": _launch,
    "open": lambda guest, parameters: guest.open_file(parameters["path"]),
    "sleep": _sleep,
    "activate_window": _activate_window,
    "close_window": _close_window,
}
"""OSWorld's set-up steps that our desktops know."""


def _command_line(guest: Guest, result: Parameters) -> str:
    return _execute(guest, result).output


def _file(guest: Guest, result: Parameters) -> str:
    content = guest.file(result["path"])
    return "" if content is None else content.decode(errors="replace")


RESULTS: Mapping[str, Callable[[Guest, Parameters], str]] = {"vm_command_line": _command_line, "vm_file": _file}
"""What a check can be about, by OSWorld's names; a file that is not there reads as empty."""


def _exact_match(found: str, rules: Parameters) -> bool:
    return found == str(rules["expected"])


def _check_include_exclude(found: str, rules: Parameters) -> bool:
    wanted, unwanted = rules.get("include", ()), rules.get("exclude", ())
    return all(text in found for text in wanted) and not any(text in found for text in unwanted)


METRICS: Mapping[str, Callable[[str, Parameters], bool]] = {
    "exact_match": _exact_match,
    "check_include_exclude": _check_include_exclude,
}
"""OSWorld's metrics that our tasks use."""


def _steps(task: Task, key: str, steps: Sequence[Parameters]) -> tuple[Parameters, ...]:
    for number, step in enumerate(steps):
        if step.get("type") not in SETUP_STEPS:
            raise TaskFormatError(
                f"task {task.id!r}: {key}[{number}].type is {step.get('type')!r}; known are {', '.join(SETUP_STEPS)}"
            )
    return tuple(steps)


def _checks(task: Task, evaluator: Parameters) -> tuple[Check, ...]:
    if evaluator["func"] == "infeasible":
        return ()
    metrics, results, expected = (_as_list(evaluator.get(key)) for key in ("func", "result", "expected"))
    if not len(metrics) == len(results) == len(expected):
        raise TaskFormatError(f"task {task.id!r}: evaluator.func, result and expected differ in length")
    checks = []
    for metric, result, right in zip(metrics, results, expected, strict=True):
        if metric not in METRICS:
            raise TaskFormatError(
                f"task {task.id!r}: evaluator.func {metric!r} is unknown; {', '.join(METRICS)} are not"
            )
        if not isinstance(result, Mapping) or result.get("type") not in RESULTS:
            raise TaskFormatError(
                f"task {task.id!r}: evaluator.result needs a type of {', '.join(RESULTS)}, is {result!r}"
            )
        if not isinstance(right, Mapping) or right.get("type") != "rule":
            raise TaskFormatError(f"task {task.id!r}: evaluator.expected must have the type 'rule', is {right!r}")
        checks.append(Check(metric, result, right["rules"]))
    return tuple(checks)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _solution(task: Task, text: str) -> Action:
    try:
        return parse_action(text)
    except ActionParseError as error:
        raise TaskFormatError(f"task {task.id!r}: solution {text!r} is not an action: {error}") from error
