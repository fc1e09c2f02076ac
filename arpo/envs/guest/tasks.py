"""OSWorld's task files: read, their steps checked before a machine starts, and OSWorld's rule for giving up."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from arpo.agent.actions import Action, CallUser, Fail
from arpo.errors import TaskFormatError, quoted
from arpo.types import Task

Step = Callable[..., object]
"""A method that performs one kind of set-up step. Its parameters are those that a task file must and may give."""

NOT_SUPPORTED: Mapping[str, str] = {"googledrive": "it needs a Google account", "login": "it needs a Google account"}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something in a task file that cannot run here."""

    key: str
    """The place in the file, such as `config[2].type`."""
    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.key} {self.name!r}: {self.reason}"


def load_task(root: str | Path, domain: str, name: str) -> Task:
    """Return the task of `root/examples/domain/name.json`, its file's content as its `config`.

    The id of a task is its file's name: OSWorld has fifteen files whose inner id belongs to another task.
    """
    if quoted(domain + name) != domain + name:
        raise TaskFormatError(f"the task {name!r} of {domain!r} must have a name of visible characters: logs show it")
    path = Path(root) / "examples" / domain / f"{name}.json"
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TaskFormatError(f"{path} does not exist; is this OSWorld's evaluation_examples folder?") from error
    except ValueError as error:
        raise TaskFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TaskFormatError(f"{path} holds a {type(record).__name__}, a task is an object")
    for key, kind in (("instruction", str), ("evaluator", dict)):
        if not isinstance(record.get(key), kind):
            raise TaskFormatError(f"{path}: key {key!r} must be a {kind.__name__}, got {record.get(key)!r}")
    infeasible = record["evaluator"].get("func") == "infeasible"
    return Task(path.stem, record["instruction"], domain=domain, config=record, infeasible=infeasible)


def step_obstacles(record: Mapping[str, Any], known: Mapping[str, Step]) -> Iterator[Obstacle]:
    """Yield the steps of a task file, and their parameters, that an interpreter with these `STEPS` does not know."""
    for key, steps in (
        ("config", record.get("config", [])),
        ("evaluator.postconfig", record["evaluator"].get("postconfig", [])),
    ):
        if not isinstance(steps, list):
            raise TaskFormatError(f"key {key!r} must be a list of steps, got {steps!r}")
        for index, step in enumerate(steps):
            yield from _obstacles_of_step(f"{key}[{index}]", step, known)


def _obstacles_of_step(place: str, step: Any, known: Mapping[str, Step]) -> Iterator[Obstacle]:
    if not isinstance(step, Mapping) or not isinstance(step.get("parameters"), Mapping):
        raise TaskFormatError(f"key {place!r} must be a step with type and parameters, got {step!r}")
    kind, given = str(step.get("type")), set(step["parameters"])
    if kind not in known:
        yield Obstacle(f"{place}.type", kind, NOT_SUPPORTED.get(kind, f"known are {', '.join(known)}"))
        return
    _, *parameters = signature(known[kind]).parameters.values()  # the first one is the interpreter itself
    required = {parameter.name for parameter in parameters if parameter.default is Parameter.empty}
    if not required <= given:
        lacking = ", ".join(sorted(required - given))
        raise TaskFormatError(f"key '{place}.parameters' of a step {kind!r} lacks {lacking}")
    for name in sorted(given - {parameter.name for parameter in parameters}):
        yield Obstacle(f"{place}.parameters", name, f"step {kind!r} is not known to take it")


def steps_of(record: Mapping[str, Any]) -> list[Any]:
    """Return all steps of a task file: those before the episode, and those before grading."""
    return [*record.get("config", []), *record["evaluator"].get("postconfig", [])]


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, anything else as a list of one: a task file may name one thing or several."""
    return value if isinstance(value, list) else [value]


def score_of_giving_up(last: Action | None, *, infeasible: bool) -> float | None:
    """Return the score of an episode by its last action alone, None where the checks of the task decide.

    Giving up solves an infeasible task and fails every other one; nothing else solves an infeasible task. `CallUser`
    gives up too, as in the official code, which has no other word for it.
    """
    gave_up = isinstance(last, Fail | CallUser)
    return float(infeasible and gave_up) if infeasible or gave_up else None
