"""What the studies share: reading runs, intervals of a mean, and writing measured blocks into Markdown."""

import argparse
import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from scipy import stats

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Run:
    """One finished or unfinished training run."""

    directory: Path
    overrides: Mapping[str, str]
    """What its folder is named by, without the seed."""
    seed: int
    budget: int
    """Iterations that its configuration asks for."""
    iterations: tuple[Mapping[str, Any], ...]
    """The lines of metrics.jsonl that belong to a rollout, by iteration."""
    starts: tuple[Mapping[str, Any], ...]
    """The entries of run.json: code, machine and times of every start."""
    evaluations: Mapping[int, Mapping[str, float]]
    """Success rate by task list, by iteration."""
    evaluation_s: float
    """Seconds of all evaluations."""

    @property
    def is_complete(self) -> bool:
        """Whether every iteration of the budget is there."""
        return len(self.iterations) == self.budget

    @property
    def wall_s(self) -> float:
        """Seconds from start to end, summed over the starts of a run that was resumed."""
        times = [[datetime.fromisoformat(start[key]) for key in ("started", "updated")] for start in self.starts]
        return sum((end - begin).total_seconds() for begin, end in times)

    def total(self, metric: str) -> float:
        """The sum of a metric over the iterations."""
        return sum(line.get(metric) or 0.0 for line in self.iterations)

    def mean(self, metric: str, *, last: int | None = None) -> float:
        """The mean of a metric over the last iterations, or all; an iteration that lacks it counts as 0."""
        lines = self.iterations[-last:] if last else self.iterations
        return fmean(line.get(metric) or 0.0 for line in lines)


def read_runs(root: Path) -> list[Run]:
    """Read every run below a folder of runs.

    Raises:
        FileNotFoundError: If there is none.
    """
    folders = sorted(path.parent for path in root.glob("*/metrics.jsonl"))
    if not folders:
        raise FileNotFoundError(f"no run in {root}: there is no */metrics.jsonl; run the command of the study first")
    return [read_run(folder) for folder in folders]


def read_run(folder: Path) -> Run:
    """Read one run: its overrides from its name, everything else from its files."""
    config = OmegaConf.load(folder / "config.yaml")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    record = folder / "run.json"
    parts = [part.partition("=") for part in folder.name.split(",")]
    return Run(
        directory=folder,
        overrides={name: value for name, equals, value in parts if equals and name != "seed"},
        seed=int(config.seed),
        budget=int(config.iterations),
        iterations=tuple(line for line in lines if line.get("rollout/success_rate") is not None),
        starts=tuple(json.loads(record.read_text())["starts"]) if record.exists() else (),
        evaluations={
            int(path.stem.removeprefix("iteration_")): {
                name: result["overall"]["success_rate"] for name, result in json.loads(path.read_text()).items()
            }
            for path in sorted(folder.glob("eval/iteration_*.json"))
        },
        evaluation_s=sum(line.get("time/evaluation") or 0.0 for line in lines),
    )


# --- statistics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds of a 95 % interval; one value has no interval."""

    mean: float
    low: float | None
    high: float | None


def t_interval(values: Sequence[float]) -> Interval:
    """Return Student's interval: mean ± t_{0.975, n-1} · s / sqrt(n), with s the sample standard deviation."""
    if len(values) == 1:
        return Interval(values[0], None, None)
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half)


def bootstrap_interval(values: Sequence[float], *, draws: int = 10_000, seed: int = 0) -> Interval:
    """Return the percentile interval of the mean of values drawn with replacement: too narrow for five."""
    if len(values) == 1:
        return Interval(values[0], None, None)
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=draws, method="percentile", rng=np.random.default_rng(seed)
    ).confidence_interval
    return Interval(fmean(values), float(drawn.low), float(drawn.high))


# --- words ----------------------------------------------------------------------------------------------------------


def percent(share: float | None) -> str:
    """A share in percent, or a dash."""
    return "–" if share is None else f"{100 * share:.1f} %"


def points(interval: Interval) -> str:
    """A difference of shares in points, with its interval."""
    mean = f"{100 * interval.mean:+.1f} points"
    if interval.low is None or interval.high is None:
        return mean
    return f"{mean} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table whose columns after the first are right-aligned."""
    rule = ["---", *("--:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The commits and machines that runs came from."""
    starts = [start for run in runs for start in run.starts]
    gits = [start["git"] for start in starts if start["git"]]
    commits = {git["commit"][:10] + (" with local changes" if git["dirty"] else "") for git in gits}
    return {
        "commits": sorted(commits) or ["not recorded"],
        "machines": sorted({_machine(start["machine"]) for start in starts}) or ["not recorded"],
        "days": sorted({start["started"][:10] for start in starts}) or ["not recorded"],
    }


def _machine(machine: Mapping[str, Any]) -> str:
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    return f"{machine['cores']} cores, {machine['memory_gb']} GB, {gpus}"


def origin(where: Mapping[str, Sequence[str]]) -> str:
    """One line that says where numbers come from."""
    return (
        f"Commit {', '.join(where['commits'])}; machine: {'; '.join(where['machines'])}; {', '.join(where['days'])}."
    )


def write_block(path: Path, content: str, *, name: str = "measured") -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a Markdown file.

    Raises:
        ValueError: If the file does not have the pair of marks exactly once.
    """
    text = path.read_text()
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{path} must hold <!-- {name} --> … <!-- /{name} --> exactly once")
    path.write_text(pattern.sub(lambda match: f"{match[1]}{content.strip()}\n{match[2]}", text))


# --- files ----------------------------------------------------------------------------------------------------------


def collect_options(description: str | None, runs: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line of a `collect.py` whose runs lie in `outputs/<runs>` by default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("runs", nargs="?", type=Path, default=ROOT / "outputs" / runs)
    parser.add_argument("--write", action="store_true", help="also rewrite the measured blocks of the READMEs")
    return parser.parse_args(arguments)


def write_study(folder: Path, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Write the results of a study: `results.csv`, a row a run and iteration, and `summary.json`."""
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
