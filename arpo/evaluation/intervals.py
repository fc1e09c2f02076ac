"""Means over seeds, their spread, 95 % intervals (Student's, paired or Welch's), and p-values of many comparisons."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with the bounds of a 95 % interval; one value has no interval."""

    mean: float
    low: float | None
    high: float | None

    def written(self, write: Callable[[float], str], unit: str = "") -> str:
        """Return the mean and the bounds, if any, each written by `write`; the unit follows the mean."""
        mean = write(self.mean) + unit
        return mean if self.low is None or self.high is None else f"{mean} [{write(self.low)}, {write(self.high)}]"

    def points(self) -> str:
        """Return a difference of shares in points, with its bounds."""
        return self.written(lambda share: f"{100 * share:+.1f}", " points")


@dataclass(frozen=True, slots=True)
class Spread:
    """Values of several seeds, summed up."""

    count: int
    deviation: float | None
    """Sample standard deviation; None of one value."""
    interval: Interval


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the values of two arms."""

    seeds: tuple[int, ...]
    """That both have and that are paired; none where the arms share no seed."""
    values: tuple[float, ...]
    """The other one minus the reference, by seed."""
    interval: Interval
    p_value: float
    """Of the two-sided t test that belongs to the interval; 1 where nothing differs, and where one value has none."""


def spread(values: Sequence[float]) -> Spread:
    """Return the mean of values with its interval and their sample standard deviation."""
    return Spread(len(values), stdev(values) if len(values) > 1 else None, t_interval(values))


def t_interval(values: Sequence[float]) -> Interval:
    """Return Student's interval: mean ± t_{0.975, n-1} · s / sqrt(n), with s the sample standard deviation."""
    if len(values) == 1:
        return Interval(values[0], None, None)
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Interval(fmean(values), fmean(values) - half, fmean(values) + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being several, by Holm's step-down method (Scand. J. Statist. 6, 1979, p. 65).

    The k-th smallest of m counts m - k + 1 times, 1 at most and never less than a smaller one. Of families in which
    values below 0.05 are called differences, 5 % at most name one that is none, however their tests are related.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted


def welch_interval(reference: Sequence[float], other: Sequence[float]) -> Interval:
    """Return the interval of a difference of means of unpaired values, whose variances may differ."""
    mean = fmean(other) - fmean(reference)
    if min(len(reference), len(other)) < 2:
        return Interval(mean, None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy distrusts values that are all equal
        found = stats.ttest_ind(other, reference, equal_var=False).confidence_interval(0.95)
    return Interval(mean, float(found.low), float(found.high))


def difference(reference: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Return the other values minus those of the reference, paired where they share seeds; None if one has none."""
    if not reference or not other:
        return None
    seeds = tuple(sorted(reference.keys() & other.keys()))
    if not seeds:
        before, after = [*reference.values()], [*other.values()]
        p_value = _p_value(stats.ttest_ind, after, before, equal_var=False)
        return Difference((), (), welch_interval(before, after), p_value)
    gains = tuple(other[seed] - reference[seed] for seed in seeds)
    return Difference(seeds, gains, t_interval(gains), _p_value(stats.ttest_1samp, gains, 0.0))


def _p_value(test: Callable[..., Any], *values: Any, **options: Any) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy distrusts values that are all equal, or alone
        found = float(test(*values, **options).pvalue)
    return 1.0 if math.isnan(found) else found
