"""The model card of an exported policy: its base, its tasks, its success with intervals, and how it was made."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from arpo.errors import ConfigError

HEADER = """\
---
library_name: transformers
pipeline_tag: image-text-to-text
tags:
- gui-agent
- reinforcement-learning
---"""
USE = """\
```python
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("FOLDER")
processor = AutoProcessor.from_pretrained("FOLDER")
```"""


def model_card(run: Path, iteration: int | None) -> str:
    """Return the card of the policy of an iteration by the files of its run; None is not known, nor its success."""
    config: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    of_iterations = "an unknown iteration" if iteration is None else f"iteration {iteration}"
    tasks = (config.get("tasks") or {}).get("train")
    model, warmstart = config.get("model") or {}, config.get("warmstart")
    path = model.get("path") or (model.get("policy") or {}).get("path") or "not recorded"
    base = f"Base: `{path}`" + (f", which the warm start `{warmstart}` wrote." if warmstart else ".")
    if (seed := config.get("seed")) is not None:
        base += f" Seed {seed}; the run was to have {config.get('iterations')} iterations."
    parts = [
        HEADER,
        f"# {' '.join(run.resolve().parts[-2:])}, {of_iterations}",
        "A policy that uses a computer: it sees screenshots, and answers each with a thought and an action. It was "
        "trained by reinforcement learning with ARPO (arXiv 2505.16282).",
        base,
        made_by(run),
        "## Success",
        _success(run, config, iteration),
        "## Training tasks",
        f"```yaml\n{yaml.safe_dump(tasks, sort_keys=False)}```" if tasks else "Not recorded.",
        "## Use",
        USE,
        "vLLM serves the folder as it is.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _success(run: Path, config: Mapping[str, Any], iteration: int | None) -> str:
    """Return a table a task list of the evaluation of this very policy, beside that before training."""
    path, first = (run / "eval" / f"iteration_{number or 0:06d}.json" for number in (iteration, 0))
    if iteration is None or not path.exists():
        return "This policy was not evaluated. `python evaluate.py` of ARPO does it."
    try:
        results = dict(json.loads(path.read_text(encoding="utf-8")))
        before = json.loads(first.read_text(encoding="utf-8")) if iteration and first.exists() else {}
        tables = [_table(name, result, before.get(name)) for name, result in results.items()]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is broken, or {first}: delete it, or the card would show what was not measured"
        ) from error
    settings = config.get("evaluation") or {}
    names = ("rollouts_per_task", "temperature", "protocol", "seed")
    listed = ", ".join(f"`{name}={settings[name]}`" for name in names if name in settings)
    protocol = f"Evaluated with {listed or 'settings that were not recorded'}."
    return "\n\n".join([f"{protocol} Intervals are Wilson's, 95 %, over episodes.", *tables])


def _table(name: str, result: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    earlier = {score["name"]: score for score in _scores(before)} if before else {}
    head = [f"{name}: domain", "episodes", "success", "95 % interval", *(["before training"] if before else [])]
    rows = []
    for score in _scores(result):
        bounds = f"{100 * score['interval_low']:.1f} – {100 * score['interval_high']:.1f} %"
        cells = [score["name"] or "-", score["episodes"], _percent(score), bounds]
        rows.append(cells + ([_percent(earlier.get(score["name"]))] if before else []))
    return table(head, rows)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], rule: str = "--:") -> str:
    """Return a Markdown table whose columns after the first are right-aligned, or as another rule says."""
    lines = (header, ["---", *(rule for _ in header[1:])], *rows)
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _scores(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [result["overall"], *result["domains"]]


def _percent(score: Mapping[str, Any] | None) -> str:
    return f"{100 * score['success_rate']:.1f} %" if score else "–"


def made_by(folder: Path) -> str:
    """Return the command and the commit of a run in a sentence; nothing where its run.json is missing or broken."""
    try:
        start: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))["starts"][-1]
        command, git = shlex.join(start["command"]), start.get("git")
        commit = f" at commit `{git['commit']}`{' with local changes' * bool(git.get('dirty'))}" if git else ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    return f"Made by `python {command}`{commit}."
