"""The measures of a run: a number each, or None where the run does not have it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from arpo.apps.comparison.runs import SUCCESS, Run

FINAL = 5
"""Iterations at the end of a run whose mean is its final success: one iteration has only some 64 episodes."""

Of = Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run, with the words for it."""

    key: str
    """Its column in files."""
    words: str
    of: Of
    digits: int | None = None
    """After the point of a plain number; None of a share, which is written in percent, and a difference in points."""
    is_compared: bool = False
    """Whether arms are compared by it."""


def final(metric: str) -> Of:
    """Return the measure of a metric's mean over the last `FINAL` iterations; None where one of them lacks it."""

    def measure(run: Run) -> float | None:
        values = [line.get(metric) for line in run.iterations[-FINAL:]]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    return measure


def first(metric: str) -> Of:
    """Return the measure of a metric in the first iteration, which no update has changed yet."""
    return lambda run: run.iterations[0].get(metric) if run.iterations else None


def mean_of(metric: str) -> Of:
    """Return the measure of the mean of a metric over the iterations that have it; None where none has."""

    def measure(run: Run) -> float | None:
        known = [line[metric] for line in run.iterations if line.get(metric) is not None]
        return fmean(known) if known else None

    return measure


def count_of(metric: str) -> Of:
    """Return the measure of the mean of a count over all iterations; one that did not log it has counted nothing."""
    return lambda run: fmean(line.get(metric) or 0.0 for line in run.iterations) if run.iterations else None


def evaluated(name: str) -> Of:
    """Return the measure of the success on a task list in the evaluation after the last update."""
    return lambda run: run.evaluations.get(run.budget, {}).get(name)


def minutes(run: Run) -> float | None:
    """Return the minutes of a run, evaluations included, summed over its starts."""
    return run.wall_s / 60 if run.starts else None


def seconds(line: Mapping[str, Any]) -> float:
    """Return the wall time of an iteration; its parts where it was the first, of which nobody knows the beginning."""
    parts = (line.get(f"time/{part}") or 0.0 for part in ("rollout", "update", "sync"))
    return line.get("time/iteration") or sum(parts)


def minutes_to(target: float) -> Of:
    """Return the measure of the minutes until the mean success of `FINAL` iterations in a row reaches a target."""

    def measure(run: Run) -> float | None:
        passed = 0.0
        successes: list[float] = []
        for line in run.iterations:
            passed += seconds(line)
            successes.append(line[SUCCESS] or 0.0)
            if len(successes) >= FINAL and fmean(successes[-FINAL:]) >= target:
                return passed / 60
        return None

    return measure


def usual(runs: Iterable[Run], metrics: Iterable[str] = ()) -> tuple[Measure, ...]:
    """Return what is worth knowing of every run, and of some metrics of one's own the mean at the end."""
    lists = dict.fromkeys(name for run in runs for results in run.evaluations.values() for name in results)
    return (
        Measure("first_success", "success in the first iteration", first(SUCCESS)),
        Measure("final_success", f"success in the last {FINAL} iterations", final(SUCCESS), is_compared=True),
        *(
            Measure(f"evaluated_{name}", f"{name}, evaluated after the last update", evaluated(name), is_compared=True)
            for name in lists
        ),
        Measure("all_failed", "all-failed groups", mean_of("group/all_failed")),
        Measure("final_all_failed", f"all-failed groups, last {FINAL} iterations", final("group/all_failed")),
        Measure("injected_per_iteration", "injections an iteration", count_of("replay/injected"), digits=2),
        Measure("minutes", "minutes of a run", minutes, digits=1),
        *(
            Measure(name, f"{name}, last {FINAL} iterations", final(name), digits=4, is_compared=True)
            for name in metrics
        ),
    )
