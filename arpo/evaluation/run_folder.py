"""The files that a run leaves in its folder, read back: what is broken is named, and the rest is there."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError)
"""Raised by what reads a file that crashes, people or other programs have left."""

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run beside its episodes; empty where one is missing or broken."""

    config: Record
    metrics: tuple[Record, ...]
    """The lines of metrics.jsonl, each a `step` and numbers; one that is not finite is None."""
    starts: tuple[Record, ...]
    evaluations: Mapping[int, Record]
    """The results of each evaluation by task list, by iteration."""
    results: Record
    broken: tuple[str, ...]
    """A sentence for each file, or line of one, that is not what it should be."""


def read_folder(folder: Path) -> RunFolder:
    """Read the files of a run, which may be written meanwhile."""
    metrics, broken = read_metrics(folder)

    def read(name: str, parse: Callable[[str], Any]) -> Any:
        try:
            return parse((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except WRONG:
            broken.append(f"{name} is broken")

    evaluations: dict[int, Record] = {}
    for path in sorted(folder.glob("eval/iteration_*.json")):
        number = path.stem.removeprefix("iteration_")
        results = read(f"eval/{path.name}", _results)
        if not number.isdecimal():
            broken.append(f"eval/{path.name} is of no iteration")
        elif results is not None:
            evaluations[int(number)] = results
    return RunFolder(
        config=read("config.yaml", lambda text: dict(yaml.safe_load(text))) or {},
        metrics=tuple(metrics),
        starts=read("run.json", lambda text: tuple(map(dict, _parsed(text)["starts"]))) or (),
        evaluations=evaluations,
        results=read("results.json", _results) or {},
        broken=tuple(broken),
    )


def read_metrics(folder: Path) -> tuple[list[Record], list[str]]:
    """Return the lines of metrics.jsonl, the last of which counts once it is whole, and what is broken in it."""
    found: list[Record] = []
    broken: list[str] = []
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            record = _parsed(line)
            if not isinstance(record["step"], int) or not all(
                isinstance(v, int | float | None) for v in record.values()
            ):
                raise TypeError("a line of metrics holds a step and numbers")
            found.append(record)
        except WRONG:
            if number < len(lines):  # the last one is being written, or a crash has cut it
                broken.append(f"line {number} of metrics.jsonl is broken")
    return found, broken


def _results(text: str) -> Record:
    results: dict[str, Any] = _parsed(text)
    for result in results.values():
        if not isinstance(result["overall"]["success_rate"], int | float | None):
            raise TypeError("a success rate is a number")
    return results


def _parsed(text: str | bytes) -> Any:
    """Return the value of a JSON text; a number that is not finite, or that no float can hold, is None."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_finite)


def _finite(digits: str) -> int | float | None:
    value = float(digits)
    if not math.isfinite(value):
        return None
    return int(digits) if digits.lstrip("-").isdecimal() else value
