"""The comparison itself: what is measured of every run, summed up by arm, and how arms differ from one of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from arpo.apps.comparison.arms import Arm, obstacle
from arpo.apps.comparison.measures import Measure
from arpo.errors import ConfigError
from arpo.evaluation.intervals import Difference, Spread, difference, holm, spread

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
    """The arm that the others are compared with."""
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
        """Return what was measured of an arm, by seed; runs that do not have it are left out."""
        measured = {seed: found[key] for seed, found in self.values[arm.name].items()}
        return {seed: value for seed, value in measured.items() if value is not None}

    def mean(self, arm: Arm, key: str) -> float | None:
        """Return the mean over all seeds of an arm; None where a run does not have it."""
        values = self.of(arm, key)
        return fmean(values.values()) if values and len(values) == len(arm.runs) else None

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
    """Measure all runs of some arms and compare each arm with one of them.

    Args:
        arms: In the order of the tables.
        measures: What is measured; one that no run has is left out.
        against: The name of the reference; by default the first arm that is comparable with most of the others.
        left_out: Runs that do not count, each with the reason.
        subject: Patterns of keys by which the arms are meant to differ, such as `tasks.train.*`; blanks between them.
    """
    if not any(arm.runs for arm in arms):
        raise ConfigError("no run has come to its end: " + ("; ".join(left_out) or "run the commands first"))
    names = [arm.name for arm in arms]
    if against is not None and against not in names:
        raise ConfigError(f"there is no arm {against!r} to compare with, there are {', '.join(map(repr, names))}")
    reference = _most_comparable(arms) if against is None else arms[names.index(against)]
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


def _most_comparable(arms: Sequence[Arm]) -> Arm:
    return max(arms, key=lambda reference: sum(not obstacle(reference, arm) for arm in arms))


def rows(arms: Sequence[Arm], columns: Mapping[str, str | Column]) -> list[dict[str, Any]]:
    """Return one row a run and iteration, with `arm`, `seed`, `iteration` and some columns.

    Args:
        arms: The arms.
        columns: By name, a metric, which is None where it is absent, or what computes the value from a line.
    """
    return [
        {"arm": arm.name, "seed": seed, "iteration": line["step"]}
        | {name: line.get(what) if isinstance(what, str) else what(line) for name, what in columns.items()}
        for arm in arms
        for seed, run in arm.runs.items()
        for line in run.iterations
    ]
