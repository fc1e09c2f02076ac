"""A run read back from its folder: configuration, metrics, evaluations and origin."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from arpo.errors import ConfigError

SUCCESS = "rollout/success_rate"
FILES = ("config.yaml", "metrics.jsonl", "run.json")
"""What the folder of a run has; one of them is enough to take it for one."""
START = ("started", "updated", "status", "git", "machine")
"""What is read of an entry of run.json."""
CUT = re.compile(r".{80}-[0-9a-f]{8}")
"""The name of a folder whose overrides were too long for one; `arpo.run.folder` makes it."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training run, finished or not."""

    directory: Path
    config: Mapping[str, Any]
    """Its `config.yaml`: everything that was set, resolved."""
    seed: int
    budget: int
    """Iterations that its configuration asks for."""
    iterations: tuple[Mapping[str, Any], ...]
    """The lines of metrics.jsonl that belong to a rollout; a value that is no finite number is None."""
    starts: tuple[Mapping[str, Any], ...]
    """The entries of run.json: code, machine, times and end of every start."""
    evaluations: Mapping[int, Mapping[str, float | None]]
    """Success rate by task list, by iteration."""
    evaluation_s: float
    """Seconds of all evaluations."""

    @property
    def overrides(self) -> dict[str, str] | None:
        """The overrides that its folder is named by, without the seed; None where the name was cut, for its length."""
        if CUT.fullmatch(self.directory.name):
            return None
        parts = [part.partition("=") for part in self.directory.name.split(",")]
        return {name: value for name, equals, value in parts if equals and name != "seed"}

    @property
    def unfinished(self) -> str:
        """The reason why nothing can be said about its end yet; empty where it has one."""
        status = str(self.starts[-1]["status"]) if self.starts else "finished"
        if self.iterations and len(self.iterations) != self.budget:
            return f"{len(self.iterations)} of {self.budget} iterations"
        if status != "finished":
            return "it has not ended, or was killed" if status == "running" else f"it ended early: {status}"
        if not self.iterations and not self.evaluations:
            return "it has neither rollouts nor evaluations, like a warm start"
        return ""

    @property
    def wall_s(self) -> float:
        """Seconds from start to end, summed over the starts of a run that was resumed."""
        times = [[datetime.fromisoformat(start[key]) for key in ("started", "updated")] for start in self.starts]
        return sum((end - begin).total_seconds() for begin, end in times)

    @property
    def commits(self) -> frozenset[str]:
        """The commits of its starts, ten digits each; a checkout with local changes is said to be one."""
        gits = [start["git"] for start in self.starts if start["git"]]
        return frozenset(git["commit"][:10] + (" with local changes" if git["dirty"] else "") for git in gits)

    def total(self, metric: str) -> float:
        """Return the sum of a metric over the iterations."""
        return sum(line.get(metric) or 0.0 for line in self.iterations)


def find_runs(patterns: Sequence[str]) -> list[Path]:
    """Return the folders of the runs that patterns name, sorted; a folder of runs stands for the runs in it.

    Raises:
        ConfigError: With a pattern that names no run.
    """
    found: set[Path] = set()
    for pattern in patterns:
        named = [Path(pattern)] if Path(pattern).exists() else [Path(name) for name in glob(pattern)]
        runs = {path for folder in named for path in (folder, *_children(folder)) if _is_run(path)}
        if not runs:
            raise ConfigError(
                f"no run is at {pattern}: name folders of runs, or of several, such as 'outputs/replay_ablation/*'"
            )
        found |= runs
    return sorted(found)


def _children(folder: Path) -> list[Path]:
    return [] if not folder.is_dir() or _is_run(folder) else sorted(folder.iterdir())


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in FILES)


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that have come to their end, and what was left out, each with the reason."""
    runs, left_out = [], []
    for folder in folders:
        try:
            run = read_run(folder)
        except ConfigError as error:
            left_out.append(str(error))
            continue
        if run.unfinished:
            left_out.append(f"{folder.name}: {run.unfinished}")
        else:
            runs.append(run)
    return runs, left_out


def read_run(folder: Path) -> Run:
    """Read one run.

    Raises:
        ConfigError: If a file is missing or broken; a last line of its metrics that a crash cut is no line.
    """
    config = _config(folder)
    lines = _lines(folder)
    return Run(
        directory=folder,
        config=config,
        seed=config["seed"],
        budget=config["iterations"],
        iterations=tuple(line for line in lines if SUCCESS in line),
        starts=_starts(folder),
        evaluations={
            int(path.stem.removeprefix("iteration_")): _rates(folder, f"eval/{path.name}")
            for path in sorted(folder.glob("eval/iteration_*.json"))
        },
        evaluation_s=sum(line.get("time/evaluation") or 0.0 for line in lines),
    )


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder.name}: there is no config.yaml, so nobody knows what was run")
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{folder.name}: config.yaml is broken") from error
    if not isinstance(config, dict) or not all(isinstance(config.get(key), int) for key in ("seed", "iterations")):
        raise ConfigError(f"{folder.name}: config.yaml lacks the seed or the iterations, so it is not of a training")
    return config


def _lines(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder.name}: there is no metrics.jsonl, so it has not begun")
    written = (folder / "metrics.jsonl").read_text(errors="replace").splitlines()
    lines = []
    for number, text in enumerate(written, start=1):
        try:
            line = json.loads(text)
            lines.append({name: _finite(value) for name, value in line.items()})
        except (ValueError, AttributeError) as error:
            if number == len(written):
                break
            raise ConfigError(f"{folder.name}: line {number} of metrics.jsonl is broken") from error
    return lines


def _starts(folder: Path) -> tuple[Mapping[str, Any], ...]:
    if not (folder / "run.json").exists():
        return ()
    with _whole(folder, "run.json"):
        starts = json.loads((folder / "run.json").read_text())["starts"]
        return tuple({key: start[key] for key in START} for start in starts)


def _rates(folder: Path, name: str) -> dict[str, float | None]:
    with _whole(folder, name):
        results = json.loads((folder / name).read_text())
        return {listed: _finite(result["overall"]["success_rate"]) for listed, result in results.items()}


@contextmanager
def _whole(folder: Path, name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder.name}: {name} is broken") from error


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
