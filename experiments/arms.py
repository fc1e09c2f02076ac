"""Studies that compare arms: which runs belong to an arm, what came of them, and the words for it.

An arm is a command of `train.py` without its seed; arms of one seed start from the same policy and see the same tasks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.run.folder import run_name
from experiments.study import (
    Interval,
    Run,
    origin,
    percent,
    points,
    provenance,
    read_run,
    t_interval,
    table,
    write_block,
    write_study,
)

FINAL = 5
"""Iterations at the end of a run whose mean is its final success: one iteration has only some 64 episodes."""
MOST_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the things that are compared."""

    name: str
    experiment: str
    overrides: tuple[str, ...] = ()

    def folder(self, outputs: Path, seed: int) -> Path:
        """Return the folder that `train.py` gives to a run of the arm."""
        return outputs / self.experiment / run_name([*self.overrides, f"seed={seed}"])

    def command(self, seeds: Sequence[int]) -> str:
        """Return what to type; a second time it goes on where the first one was stopped."""
        words = [f"experiment={self.experiment}", *self.overrides, f"seed={','.join(map(str, seeds))}"]
        return " ".join(["python train.py -m resume=auto", *words])


@dataclass(frozen=True, slots=True)
class Arms:
    """The runs of a study that came to their end, by arm and seed."""

    runs: Mapping[str, Mapping[int, Run]]
    """By the arm's name, in the order of the study; none of an arm that was not run."""
    left_out: Sequence[str]
    """The runs that were not taken, with the reason."""

    @classmethod
    def read(cls, outputs: Path, arms: Sequence[Arm]) -> "Arms":
        """Read the runs of some arms.

        Raises:
            ValueError: If none came to its end, or they have different numbers of iterations.
        """
        found: dict[str, dict[int, Run]] = {arm.name: {} for arm in arms}
        left_out = []
        for arm in arms:
            for seed in range(MOST_SEEDS):
                folder = arm.folder(outputs, seed)
                if not (folder / "metrics.jsonl").exists():
                    continue
                run = read_run(folder)
                if run.is_complete and run.evaluations:
                    found[arm.name][seed] = run
                else:
                    left_out.append(f"{arm.name}, seed {seed}: {len(run.iterations)} of {run.budget} iterations")
        budgets = {run.budget for runs in found.values() for run in runs.values()}
        if not budgets:
            raise ValueError(f"no complete run in {outputs}: " + ("; ".join(left_out) or "run the commands first"))
        if len(budgets) > 1:
            raise ValueError(f"the runs have different numbers of iterations: {sorted(budgets)}; make them again")
        return cls(found, left_out)

    @property
    def all(self) -> list[Run]:
        """Every run."""
        return [run for runs in self.runs.values() for run in runs.values()]


Measure = Callable[[Run], float | None]


def evaluated(name: str) -> Measure:
    """Return the measure of the success on a task list in the evaluation after the last update."""
    return lambda run: run.evaluations[max(run.evaluations)].get(name)


def trained(run: Run) -> float:
    """Return the success of the sampled episodes of the last iterations."""
    return run.mean("rollout/success_rate", last=FINAL)


def mean_of(metric: str) -> Measure:
    """Return the measure of the mean of a metric over the iterations that have it; None where none has."""

    def measure(run: Run) -> float | None:
        known = [line[metric] for line in run.iterations if line.get(metric) is not None]
        return fmean(known) if known else None

    return measure


def seconds(line: Mapping[str, Any]) -> float:
    """Return the wall time of an iteration; its parts where it was the first, of which nobody knows the beginning."""
    parts = (line.get(f"time/{part}") or 0.0 for part in ("rollout", "update", "sync"))
    return line.get("time/iteration") or sum(parts)


def minutes_to(target: float) -> Measure:
    """Return the measure of the minutes until the mean success of `FINAL` iterations in a row reaches a target."""

    def measure(run: Run) -> float | None:
        passed = 0.0
        successes: list[float] = []
        for line in run.iterations:
            passed += seconds(line)
            successes.append(line["rollout/success_rate"])
            if len(successes) >= FINAL and fmean(successes[-FINAL:]) >= target:
                return passed / 60
        return None

    return measure


def summarize(arms: Arms, measures: Mapping[str, Measure], *, reference: str, compared: str) -> dict[str, Any]:
    """Return everything that a README says.

    Args:
        arms: The runs.
        measures: What is measured of each run.
        reference: The name of the arm with which the others are compared, paired by seed.
        compared: The measure that is compared.
    """
    values = {
        name: {seed: {key: measure(run) for key, measure in measures.items()} for seed, run in runs.items()}
        for name, runs in arms.runs.items()
    }
    return {
        "budget_iterations": arms.all[0].budget,
        "reference": reference,
        "compared": compared,
        "arms": {
            name: {key: _mean([found[key] for found in of_seeds.values()]) for key in measures}
            for name, of_seeds in values.items()
        },
        "difference": {
            name: _difference(values[reference], of_seeds, compared)
            for name, of_seeds in values.items()
            if name != reference
        },
        "runs": [
            {"arm": name, "seed": seed, **found}
            for name, of_seeds in values.items()
            for seed, found in of_seeds.items()
        ],
        "left_out": list(arms.left_out),
        "provenance": provenance(arms.all),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None where a value is missing."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _difference(
    reference: Mapping[int, Mapping[str, float | None]], other: Mapping[int, Mapping[str, float | None]], measure: str
) -> dict[str, Any] | None:
    """Return the other arm minus the reference, paired by seed; None where no seed has both."""
    gains = {}
    for seed in reference.keys() & other.keys():
        before, after = reference[seed][measure], other[seed][measure]
        if before is not None and after is not None:
            gains[seed] = after - before
    if not gains:
        return None
    ordered = [gains[seed] for seed in sorted(gains)]
    return {"seeds": sorted(gains), "values": ordered, "student": asdict(t_interval(ordered))}


def rows(arms: Arms, metrics: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return one row a run and iteration, with some metrics under shorter names; empty where one is absent."""
    return [
        {"arm": name, "seed": seed, "iteration": line["step"], "seconds": seconds(line)}
        | {column: line.get(metric) for column, metric in metrics.items()}
        for name, runs in arms.runs.items()
        for seed, run in runs.items()
        for line in run.iterations
    ]


Shown = Mapping[str, tuple[str, Callable[[float | None], str]]]
"""The words for a measure, and how its values are written."""


def number(digits: int) -> Callable[[float | None], str]:
    """Return the way to write a number, or a dash."""
    return lambda value: "–" if value is None else f"{value:.{digits}f}"


def report(summary: Mapping[str, Any], shown: Shown) -> str:
    """Return the measured block of a README: a row a measure and a column an arm, each run, and the differences."""
    names = list(summary["arms"])
    means = [[words, *(write(summary["arms"][name][key]) for name in names)] for key, (words, write) in shown.items()]
    seeds = [str(sum(run["arm"] == name for run in summary["runs"])) for name in names]
    compared = summary["compared"]
    runs = {(run["arm"], run["seed"]): run[compared] for run in summary["runs"]}
    each = [
        [str(seed), *(percent(runs.get((name, seed))) for name in names)]
        for seed in sorted({seed for _, seed in runs})
    ]
    parts = [
        differences(summary, shown),
        table(["mean over seeds", *names], [*means, ["seeds", *seeds]]),
        table([f"{shown[compared][0]}, seed", *names], each),
        origin(summary["provenance"]),
    ]
    if summary["left_out"]:
        parts.append("Left out: " + "; ".join(summary["left_out"]) + ".")
    return "\n\n".join(parts)


def write_results(
    folder: Path, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], shown: Shown, *, readme: bool
) -> None:
    """Write the results of a study into its folder, print the measured block, and on demand put it into the README."""
    write_study(folder, lines, summary)
    block = report(summary, shown)
    print(block)
    if readme:
        write_block(folder / "README.md", block)


def differences(summary: Mapping[str, Any], shown: Shown) -> str:
    """Return a line for each arm: how it differs from the reference, and whether that is shown."""
    words = shown[summary["compared"]][0]
    lines = [
        f"After {summary['budget_iterations']} iterations, {words}, minus that of *{summary['reference']}*, "
        "paired by seed, with a 95 % t interval:\n"
    ]
    for name, difference in summary["difference"].items():
        if difference is None:
            lines.append(f"- *{name}*: no seed has both.")
            continue
        interval, seeds = Interval(**difference["student"]), len(difference["seeds"])
        lines.append(f"- *{name}*: **{points(interval)}**, {seeds} seed{'s' * (seeds != 1)}; {_verdict(interval)}.")
    return "\n".join(lines)


def _verdict(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return "one seed says little"
    if interval.low > 0:
        return "better"
    return "worse" if interval.high < 0 else "not shown to differ"
