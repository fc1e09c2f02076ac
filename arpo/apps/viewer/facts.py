"""The facts of a run beside its episodes: settings, curves, evaluations, and where it came from."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from arpo.apps.run_files import Record, RunFiles

CURVES = (
    "rollout/success_rate",
    "val/in_domain/success_rate",
    "val/held_out/success_rate",
    "group/all_failed",
    "group/all_succeeded",
    "replay/injected",
    "policy/entropy",
    "train/ratio_min",
    "train/ratio_max",
    "rollout/lag_mean",
)
"""The metrics that the page of a run draws."""
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run that the viewer needs; defaults where the run has no configuration."""

    success_threshold: float
    model: Path | None
    """The directory of the checkpoint that it started from, if it is still there."""


def settings_of(config: Record, run: Path) -> Settings:
    """Return what the configuration of a run says."""
    threshold = _at(config, "rollout", "settings", "success_threshold")
    return Settings(
        success_threshold=float(threshold) if _is_number(threshold) else DEFAULT_THRESHOLD,
        model=_directory(run, _at(config, "model", "path")),
    )


def curves_of(files: RunFiles) -> dict[str, list[list[float]]]:
    """Return points [iteration, value] of each metric that is drawn; of two lines of an iteration the later counts."""
    points: dict[str, dict[int, float]] = {name: {} for name in CURVES}
    for line in files.metrics:
        for name in CURVES:
            if line.get(name) is not None:
                points[name][line["step"]] = line[name]
    return {name: [[step, value] for step, value in sorted(found.items())] for name, found in points.items() if found}


def evaluations_of(files: RunFiles) -> list[list[Any]]:
    """Return a row for each evaluation of each list: iteration, list, success, its interval, episodes, lost ones."""
    rows = []
    for iteration, results in [*files.evaluations.items(), (0, files.results)]:
        for listed, result in results.items():
            overall = result["overall"]
            row = [overall.get(key) for key in ("success_rate", "interval_low", "interval_high", "episodes")]
            if all(map(_is_number, row)):
                rows.append([iteration, listed, *row, result.get("lost")])
    return rows


def origin_of(files: RunFiles) -> list[list[str]]:
    """Return pairs of a word and a fact: how the run was started last, from which commit, and how it ended."""
    last = files.starts[-1] if files.starts else {}
    command = last.get("command")
    found = {
        "command": shlex.join(["python", *map(str, command)]) if isinstance(command, list) else None,
        "commit": _at(last, "git", "commit"),
        "started": last.get("started"),
        "status": last.get("status"),
    }
    return [[word, str(fact)] for word, fact in found.items() if fact]


def _directory(run: Path, named: Any) -> Path | None:
    """Return a directory that a run's configuration names, relative to where the run was started."""
    if not isinstance(named, str):
        return None
    places = [Path(named), *(parent / named for parent in run.resolve().parents)]
    try:
        return next((place for place in places if (place / "tokenizer.json").is_file()), None)
    except OSError:  # a name that no file can have
        return None


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _is_number(value: Any) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False
