"""The facts of a run beside its episodes: settings, curves, evaluations, and where it came from."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import yaml

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


def settings_of(run: Path) -> Settings:
    """Return what `config.yaml` of a run says."""
    try:
        config = yaml.safe_load((run / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        config = {}
    threshold = _at(config, "rollout", "settings", "success_threshold")
    return Settings(
        success_threshold=float(threshold) if isinstance(threshold, int | float) else DEFAULT_THRESHOLD,
        model=_directory(run, _at(config, "model", "path")),
    )


def curves_of(run: Path) -> dict[str, list[list[float]]]:
    """Return points [iteration, value] of each metric that is drawn, from the whole lines of `metrics.jsonl`."""
    points: dict[str, dict[float, float]] = {name: {} for name in CURVES}
    for line in _lines(run / "metrics.jsonl"):
        step = line.get("step")
        for name in CURVES:
            value = line.get(name)
            if _is_number(step) and _is_number(value):
                points[name][step] = value
    return {name: [[step, value] for step, value in sorted(found.items())] for name, found in points.items() if found}


def evaluations_of(run: Path) -> list[list[Any]]:
    """Return a row for each evaluation of each list: iteration, list, success, its interval, episodes, lost ones."""
    rows = []
    for path in [*sorted((run / "eval").glob("iteration_*.json")), run / "results.json"]:
        lists = _json(path)
        name = path.stem.removeprefix("iteration_")
        iteration = int(name) if name.isdigit() else 0
        if isinstance(lists, dict) and "overall" in lists:
            lists = {str(lists.get("name", "")): lists}
        for listed, result in lists.items() if isinstance(lists, dict) else ():
            overall = _at(result, "overall")
            row = [_at(overall, key) for key in ("success_rate", "interval_low", "interval_high", "episodes")]
            if all(map(_is_number, row)):
                rows.append([iteration, listed, *row, _at(result, "lost")])
    return rows


def origin_of(run: Path) -> list[list[str]]:
    """Return pairs of a word and a fact: how the run was started last, from which commit, and how it ended."""
    starts = _at(_json(run / "run.json"), "starts")
    last = starts[-1] if isinstance(starts, list) and starts else {}
    command = _at(last, "command")
    found = {
        "command": "python " + " ".join(map(str, command)) if isinstance(command, list) else None,
        "commit": _at(last, "git", "commit"),
        "started": _at(last, "started"),
        "status": _at(last, "status"),
    }
    return [[word, str(fact)] for word, fact in found.items() if fact]


def _directory(run: Path, named: Any) -> Path | None:
    """Return a directory that a run's configuration names, relative to where the run was started."""
    if not isinstance(named, str):
        return None
    places = [Path(named), *(parent / named for parent in run.resolve().parents)]
    return next((place for place in places if (place / "tokenizer.json").is_file()), None)


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines(keepends=True):
        try:
            record = json.loads(line) if line.endswith("\n") else None
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _at(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
