"""A run read back from its folder: configuration, metrics, evaluations and origin."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError
from arpo.evaluation.run_folder import WRONG, read_folder

SUCCESS = "rollout/success_rate"
FILES = ("config.yaml", "metrics.jsonl", "run.json")
"""Files in the folder of a run, any of which marks it as one."""
CUT = re.compile(r".*-[0-9a-f]{16}|.{80}-[0-9a-f]{8}")
"""The name of a folder that lacks overrides, from `arpo.run.folder`; it made the second form before."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run, as its run.json has it."""

    started: str
    seconds: float
    """To its end, or to when it was last heard of."""
    status: str
    """`finished`, `running`, or how it ended early."""
    commit: str
    """Ten digits, and whether there were local changes; empty where it is not known."""
    machine: str


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
    starts: tuple[Start, ...]
    evaluations: Mapping[int, Mapping[str, float | None]]
    """Success rate by task list, by iteration."""

    @property
    def overrides(self) -> dict[str, str] | None:
        """The overrides that its folder is named by, without the seed; None where the name lacks them."""
        if CUT.fullmatch(self.directory.name):
            return None
        parts = [part.partition("=") for part in self.directory.name.split(",")]
        return {name: value for name, equals, value in parts if equals and name != "seed"}

    @property
    def unfinished(self) -> str:
        """The reason why its end is not known yet; empty where it has one."""
        status = self.starts[-1].status if self.starts else "finished"
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
        return sum(start.seconds for start in self.starts)

    @property
    def commits(self) -> frozenset[str]:
        """The commits of its starts, as far as they are known."""
        return frozenset(start.commit for start in self.starts if start.commit)


def find_runs(patterns: Sequence[str]) -> list[Path]:
    """Return the folders of the runs that patterns name, sorted; a folder of runs stands for the runs in it."""
    found: set[Path] = set()
    for pattern in patterns:
        named = [Path(pattern)] if Path(pattern).exists() else [Path(name) for name in glob(pattern)]
        children = [path for folder in named if folder.is_dir() and not _is_run(folder) for path in folder.iterdir()]
        runs = {path for path in (*named, *children) if _is_run(path)}
        if not runs:
            raise ConfigError(
                f"no run is at {pattern}: name folders of runs, or of several, such as 'outputs/replay_ablation/*'"
            )
        found |= runs
    return sorted(found)


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
    """Read one run."""
    files = read_folder(folder)
    for name in ("config.yaml", "metrics.jsonl"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder.name}: {name} is missing, so it has not begun or is no run")
    if files.broken:
        raise ConfigError(f"{folder.name}: {files.broken[0]}")
    seed, budget = files.config.get("seed"), files.config.get("iterations")
    if not isinstance(seed, int) or not isinstance(budget, int):
        raise ConfigError(f"{folder.name}: config.yaml lacks the seed or the iterations, so it is not of a training")
    return Run(
        directory=folder,
        config=files.config,
        seed=seed,
        budget=budget,
        iterations=tuple(line for line in files.metrics if SUCCESS in line),
        starts=tuple(_start(folder, entry) for entry in files.starts),
        evaluations={
            iteration: {listed: result["overall"]["success_rate"] for listed, result in results.items()}
            for iteration, results in files.evaluations.items()
        },
    )


def _start(folder: Path, entry: Mapping[str, Any]) -> Start:
    try:
        git, machine = entry["git"], entry["machine"]
        begin, end = (datetime.fromisoformat(entry[key]) for key in ("started", "updated"))
        return Start(
            started=entry["started"],
            seconds=(end - begin).total_seconds(),
            status=str(entry["status"]),
            commit=git["commit"][:10] + (" with local changes" if git["dirty"] else "") if git else "",
            machine=f"{machine['cores']} cores, {machine['memory_gb']} GB, {', '.join(machine['gpus']) or 'no GPU'}",
        )
    except WRONG as error:
        raise ConfigError(f"{folder.name}: run.json is broken") from error
