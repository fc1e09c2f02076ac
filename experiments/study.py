"""What the studies share: the runs of an arm, a bootstrap interval, and writing results and measured blocks."""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy import stats

from arpo.apps.comparison import arms as compared_arms
from arpo.apps.comparison.arms import differing, settings
from arpo.apps.comparison.command import write_rows
from arpo.apps.comparison.compare import Column, Comparison, Measure, compare, rows
from arpo.apps.comparison.curves import Panel
from arpo.apps.comparison.runs import Run, read_runs
from arpo.apps.comparison.words import provenance, report
from arpo.evaluation.intervals import Interval
from arpo.evaluation.run_folder import read_folder
from arpo.run.folder import run_name
from experiments.curves import Bars, save

ROOT = Path(__file__).resolve().parent.parent
MOST_SEEDS = 20


# --- arms -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things that are compared: a command of `train.py` without its seed."""

    name: str
    experiment: str
    overrides: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    """Its own, where it has fewer than its study."""

    def folder(self, outputs: Path, seed: int) -> Path:
        """Return the folder that `train.py` gives to a run of the arm."""
        return outputs / self.experiment / run_name([*self.overrides, f"seed={seed}"])

    def command(self, seeds: Sequence[int]) -> str:
        """Return what to type for a study's seeds, or the arm's own; a second time it goes on where it was stopped."""
        seeds = self.seeds or seeds
        words = [f"experiment={self.experiment}", *self.overrides, f"seed={','.join(map(str, seeds))}"]
        return " ".join(["python train.py -m resume=auto", *words])


def read_arms(outputs: Path, arms: Sequence[Arm]) -> tuple[list[compared_arms.Arm], list[str]]:
    """Return the runs of some arms that came to their end, and what was left out, each with the reason.

    Raises:
        ValueError: If the runs of an arm differ in more than their seed, as where a file of conf/ was changed since.
    """
    found, left_out = [], []
    for arm in arms:
        folders = (arm.folder(outputs, seed) for seed in range(MOST_SEEDS))
        runs, unfinished = read_runs([folder for folder in folders if folder.is_dir()])
        if keys := ", ".join(differing(settings(runs))):
            raise ValueError(
                f"the runs of {arm.name} are of different configurations: {keys}; remove those of another"
            )
        found.append(compared_arms.Arm(arm.name, {run.seed: run for run in runs}))
        left_out += [f"{arm.experiment}/{reason}" for reason in unfinished]
    return found, left_out


def compare_arms(
    outputs: Path, arms: Sequence[Arm], measures: Sequence[Measure], *, against: str, subject: str = ""
) -> Comparison:
    """Compare the runs of some arms; `subject` has patterns of the keys by which they are meant to differ.

    Raises:
        ConfigError: If none came to its end.
        ValueError: If two arms that have runs are not comparable.
    """
    found, left_out = read_arms(outputs, arms)
    comparison = compare(found, measures, against=against, left_out=left_out, subject=subject)
    for arm in found:
        if arm.runs and comparison.reference.runs and arm.name in comparison.obstacles:
            raise ValueError(f"{against} and {arm.name} are not comparable: {comparison.obstacles[arm.name]}")
    return comparison


def summarize(comparison: Comparison) -> dict[str, Any]:
    """Return what a study keeps of a comparison beside its runs' curves, in full digits."""
    keys = [measure.key for measure in comparison.measures]
    compared = [measure.key for measure in comparison.measures if measure.is_compared]
    return {
        "reference": comparison.reference.name,
        "arms": {arm.name: {key: comparison.mean(arm, key) for key in keys} for arm in comparison.arms},
        "difference": {
            arm.name: {key: paired(comparison, arm.name, key) for key in compared} for arm in comparison.others
        },
        "runs": runs_of(comparison),
        "left_out": list(comparison.left_out),
        "provenance": origin_of(comparison),
    }


def runs_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Return what was measured of every run."""
    keys = [measure.key for measure in comparison.measures]
    return [
        {"arm": arm.name, "seed": seed} | {key: found[key] for key in keys}
        for arm in comparison.arms
        for seed, found in comparison.values[arm.name].items()
    ]


def origin_of(comparison: Comparison) -> dict[str, list[str]]:
    """Return the commits, machines and days of all runs."""
    return provenance([run for arm in comparison.arms for run in arm.runs.values()])


def paired(comparison: Comparison, name: str, key: str) -> dict[str, Any] | None:
    """Return how an arm differs from the reference in a measure, paired by seed; None where no seed has both."""
    (arm,) = (arm for arm in comparison.arms if arm.name == name)
    found = comparison.difference(arm, key)
    if found is None or not found.seeds:
        return None
    return {"seeds": list(found.seeds), "values": list(found.values), "student": asdict(found.interval)}


@dataclass(frozen=True, slots=True)
class Study:
    """A comparison of arms, and its picture."""

    title: str
    """Of the picture."""
    arms: tuple[Arm, ...]
    """The first one is what the others are compared with."""
    measures: tuple[Measure, ...] | Callable[[Path, Sequence[Arm]], tuple[Measure, ...]]
    """What is measured of a run; or what says it, from the folder of the outputs and the arms."""
    columns: Mapping[str, str | Column]
    """Of `results.csv`, as `rows` has them."""
    panels: tuple[Panel, ...]
    """Curves of `results.csv`."""
    seeds: tuple[int, ...] = (0, 1, 2)
    subject: str = ""
    """Patterns of keys by which the arms are meant to differ, such as `tasks.train.*`; blanks between them."""
    first: Callable[[Comparison], str] | None = None
    """The beginning of the measured block, above the comparison."""
    bars: Callable[[Path], tuple[Bars, ...]] = field(default=lambda _: ())
    """Bars beside the curves, from the folder of the study."""


def collect(folder: Path, study: Study, outputs: Path, *, write: bool) -> None:
    """Write what came out into the folder of a study, and on demand into its README."""
    measures = study.measures if isinstance(study.measures, tuple) else study.measures(outputs, study.arms)
    comparison = compare_arms(outputs, study.arms, measures, against=study.arms[0].name, subject=study.subject)
    write_study(folder, rows(comparison.arms, study.columns), summarize(comparison))
    words = "\n\n".join([*([study.first(comparison)] if study.first is not None else []), report(comparison)])
    print(words)
    if write:
        write_block(folder / "README.md", words)


def plot(folder: Path, study: Study) -> None:
    """Draw plot.png of a study from the files in its folder."""
    save(folder, study.panels, study.title, study.bars(folder))


def scores(run: Run, iteration: int, listed: str, by: str) -> list[dict[str, Any]]:
    """Return the scores of a task list in the evaluation after an iteration, by `tasks` or by `domains`, its pages.

    Each has `name`, `episodes`, `successes` and `success_rate`; there are none of a list that was not evaluated.
    """
    results = read_folder(run.directory).evaluations.get(iteration, {})
    return [dict(score) for score in results.get(listed, {}).get(by, ())]


# --- statistics -----------------------------------------------------------------------------------------------------


def bootstrap_interval(values: Sequence[float], *, draws: int = 10_000, seed: int = 0) -> Interval:
    """Return the percentile interval of the mean of values drawn with replacement: too narrow for five."""
    if len(values) == 1:
        return Interval(values[0], None, None)
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=draws, method="percentile", rng=np.random.default_rng(seed)
    ).confidence_interval
    return Interval(fmean(values), float(drawn.low), float(drawn.high))


# --- files ----------------------------------------------------------------------------------------------------------


def write_block(path: Path, content: str, *, name: str = "measured") -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a Markdown file.

    Raises:
        ValueError: If the file does not have the pair of marks exactly once.
    """
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{path} must hold <!-- {name} --> … <!-- /{name} --> exactly once")
    path.write_text(pattern.sub(lambda match: f"{match[1]}{content.strip()}\n{match[2]}", text), encoding="utf-8")


def collect_options(description: str | None, runs: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line of a `collect.py` whose runs lie in `outputs/<runs>` by default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("runs", nargs="?", type=Path, default=ROOT / "outputs" / runs)
    parser.add_argument("--write", action="store_true", help="also rewrite the measured blocks of the READMEs")
    return parser.parse_args(arguments)


def write_study(folder: Path, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Write the results of a study: `results.csv`, a row a run and iteration, and `summary.json`."""
    write_rows(folder / "results.csv", lines)
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
