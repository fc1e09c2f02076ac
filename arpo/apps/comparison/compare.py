"""The comparison itself: the measures of every run, summed up by arm, and the difference of arms from one of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from arpo.apps.comparison.arms import Arm, obstacle
from arpo.apps.comparison.runs import SUCCESS, Run
from arpo.errors import ConfigError
from arpo.evaluation.intervals import Difference, Spread, difference, holm, spread

FINAL = 5
"""Iterations at the end of a run whose mean is its final success: one iteration has only some 64 episodes."""

Of = Callable[[Run], float | None]


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a run, and its name for people."""

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


def mean_of(metric: str) -> Of:
    """Return the measure of the mean of a metric over the iterations that have it; None where none has."""

    def measure(run: Run) -> float | None:
        known = [line[metric] for line in run.iterations if line.get(metric) is not None]
        return fmean(known) if known else None

    return measure


def count_of(metric: str) -> Of:
    """Return the measure of the mean of a count over all iterations; one that did not log it has counted nothing."""
    return lambda run: fmean(line.get(metric) or 0.0 for line in run.iterations) if run.iterations else None


def first_success(run: Run) -> float | None:
    """Return the success of the first iteration, which no update has changed yet."""
    return run.iterations[0].get(SUCCESS) if run.iterations else None


def evaluated(name: str) -> Of:
    """Return the measure of the success on a task list in the evaluation after the last update."""
    return lambda run: run.evaluations.get(run.budget, {}).get(name)


def minutes(run: Run) -> float | None:
    """Return the minutes of a run, evaluations included, summed over its starts."""
    return run.wall_s / 60 if run.starts else None


def usual(runs: Iterable[Run], metrics: Iterable[str] = ()) -> tuple[Measure, ...]:
    """Return the measures of every run, and those of the mean of further metrics at the end."""
    lists = dict.fromkeys(name for run in runs for results in run.evaluations.values() for name in results)
    return (
        Measure("first_success", "success in the first iteration", first_success),
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


Values = Mapping[str, Mapping[int, Mapping[str, float | None]]]
"""What was measured, by arm, seed and measure."""
Column = Callable[[Mapping[str, Any]], Any]
"""A value of a line of metrics."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms side by side."""

    arms: tuple[Arm, ...]
    measures: tuple[Measure, ...]
    reference: Arm
    values: Values
    obstacles: Mapping[str, str]
    """Why an arm is not compared with the reference, by arm."""
    left_out: tuple[str, ...]
    """Runs that do not count, each with the reason."""

    @property
    def others(self) -> tuple[Arm, ...]:
        """All arms but the reference."""
        return tuple(arm for arm in self.arms if arm is not self.reference)

    def of(self, arm: Arm, key: str) -> dict[int, float]:
        """Return the values of an arm by seed; runs that do not have one are left out."""
        measured = {seed: found[key] for seed, found in self.values[arm.name].items()}
        return {seed: value for seed, value in measured.items() if value is not None}

    def mean(self, arm: Arm, key: str) -> float | None:
        """Return the mean over all seeds of an arm; None where a run does not have it."""
        found = self.spread(arm, key)
        return None if found is None else found.interval.mean

    def spread(self, arm: Arm, key: str) -> Spread | None:
        """Return mean, deviation and interval over all seeds of an arm; None where a run does not have it."""
        values = self.of(arm, key)
        return spread([*values.values()]) if values and len(values) == len(arm.runs) else None

    def difference(self, arm: Arm, key: str) -> Difference | None:
        """Return an arm minus the reference, paired where they share seeds; None where they are not comparable."""
        if arm.name in self.obstacles:
            return None
        return difference(self.of(self.reference, key), self.of(arm, key))

    def adjusted(self) -> dict[tuple[str, str], float]:
        """Return the p-value of each difference by arm and measure, adjusted for all of this comparison (Holm)."""
        keys = [measure.key for measure in self.measures if measure.is_compared]
        found = {(arm.name, key): self.difference(arm, key) for arm in self.others for key in keys}
        known = {place: each.p_value for place, each in found.items() if each and each.interval.low is not None}
        return dict(zip(known, holm([*known.values()]), strict=True))


def compare(
    arms: Sequence[Arm],
    measures: Iterable[Measure],
    *,
    against: str | None = None,
    left_out: Sequence[str] = (),
    subject: str = "",
) -> Comparison:
    """Measure all runs of some arms and compare each arm with the one named by `against`.

    By default that is the first arm that is comparable with most of the others. A measure that no run has is left
    out; `subject` is that of `obstacle`, and `left_out` has the runs that do not count, each with the reason.
    """
    if not any(arm.runs for arm in arms):
        raise ConfigError("no run has come to its end: " + ("; ".join(left_out) or "run the commands first"))
    names = [arm.name for arm in arms]
    if against is not None and against not in names:
        raise ConfigError(f"there is no arm {against!r} to compare with, there are {', '.join(map(repr, names))}")
    comparable = [sum(not obstacle(reference, arm) for arm in arms) for reference in arms]
    reference = arms[comparable.index(max(comparable)) if against is None else names.index(against)]
    measures = tuple(measures)
    values = {
        arm.name: {seed: {measure.key: measure.of(run) for measure in measures} for seed, run in arm.runs.items()}
        for arm in arms
    }
    known = {
        key for runs in values.values() for found in runs.values() for key, value in found.items() if value is not None
    }
    reasons = {arm.name: obstacle(reference, arm, subject=subject) for arm in arms if arm is not reference}
    return Comparison(
        arms=tuple(arms),
        measures=tuple(measure for measure in measures if measure.key in known),
        reference=reference,
        values=values,
        obstacles={name: reason for name, reason in reasons.items() if reason},
        left_out=tuple(left_out),
    )


def rows(arms: Sequence[Arm], columns: Mapping[str, str | Column]) -> list[dict[str, Any]]:
    """Return a row a run and iteration: `arm`, `seed`, `iteration` and columns, metrics or functions of a line."""
    return [
        {"arm": arm.name, "seed": seed, "iteration": line["step"]}
        | {name: line.get(what) if isinstance(what, str) else what(line) for name, what in columns.items()}
        for arm in arms
        for seed, run in arm.runs.items()
        for line in run.iterations
    ]
