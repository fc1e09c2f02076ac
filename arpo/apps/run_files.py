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
class RunFiles:
    """The words of a run's folder beside its episodes; empty where a file is missing or broken."""

    config: Record
    metrics: tuple[Record, ...]
    """The lines of metrics.jsonl, each a `step` and numbers; one that is not finite is None."""
    starts: tuple[Record, ...]
    """The entries of run.json."""
    evaluations: Mapping[int, Record]
    """The results of each evaluation by task list, by iteration."""
    results: Record
    """Those of `evaluate.py`, by task list."""
    broken: tuple[str, ...]
    """A sentence for each file, or line of one, that is not what it should be."""


def read_files(folder: Path) -> RunFiles:
    """Read the files of a run, which may be written meanwhile; the last line of metrics counts once it is whole."""
    broken: list[str] = []

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
    return RunFiles(
        config=read("config.yaml", lambda text: dict(yaml.safe_load(text))) or {},
        metrics=tuple(read("metrics.jsonl", lambda text: _metrics(text, broken)) or ()),
        starts=read("run.json", lambda text: tuple(map(dict, _parsed(text)["starts"]))) or (),
        evaluations=evaluations,
        results=read("results.json", _results) or {},
        broken=tuple(broken),
    )


def _metrics(text: str, broken: list[str]) -> list[Record]:
    lines = text.splitlines()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_of_numbers(_parsed(line)))
        except WRONG:
            if number < len(lines):  # the last one is being written, or a crash has cut it
                broken.append(f"line {number} of metrics.jsonl is broken")
    return found


def _of_numbers(line: Record) -> Record:
    if not isinstance(line["step"], int) or not all(isinstance(value, int | float | None) for value in line.values()):
        raise TypeError("a line of metrics holds a step and numbers")
    return line


def _results(text: str) -> Record:
    results: dict[str, Any] = _parsed(text)
    for result in results.values():
        if not isinstance(result["overall"]["success_rate"], int | float | None):
            raise TypeError("a success rate is a number")
    return results


def _parsed(text: str) -> Any:
    """Return what JSON says; a number that is not finite, or that no float can hold, is None."""
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_finite)


def _finite(digits: str) -> int | float | None:
    value = float(digits)
    if not math.isfinite(value):
        return None
    return int(digits) if digits.lstrip("-").isdecimal() else value
