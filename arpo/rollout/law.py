"""The law of decoupling: from measured times, how long an iteration takes and which part of the system sets it.

Two answers, both in seconds an iteration. `bounds` is arithmetic: no schedule is faster than the busiest of
environments, engine, trainer and driver, nor than the slowest episode within the lag. `iteration_s` plays the measured
episodes through the rules of the collector (first come first served, at most `lag + 1` iterations admitted and not yet
learned from), so it knows what they cost together. `docs/decoupling.md` has both beside what was measured.
"""

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from arpo.errors import check_at_least

Order = Literal["submitted", "finished"]
"""Which groups an iteration takes: those that were asked for first, or those that ended first."""

ITERATIONS = 64
"""Iterations that are played: the mean over them is within 2 % of that over a thousand."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an iteration has to do, as it was measured."""

    groups: Sequence[Sequence[float]]
    """Seconds of every episode from reset to evaluation, a row a group; those of several iterations are better than
    those of one."""
    groups_per_iteration: int
    environments: int
    trainer_s: float
    """Seconds an iteration for which the trainer does not wait for rollouts: update, sync, evaluation, checkpoint."""
    engine_s: float = 0.0
    """Seconds that the engine would take for an iteration if it were always full; 0 where that is not known."""
    driver_s: float = 0.0
    """Processor seconds of the driver's event loop an iteration."""

    def __post_init__(self) -> None:
        check_at_least(1, groups=len(self.groups), groups_per_iteration=self.groups_per_iteration)
        check_at_least(1, environments=self.environments)
        check_at_least(0, trainer_s=self.trainer_s, engine_s=self.engine_s, driver_s=self.driver_s)


def episode_s(*, reset_s: float, steps: float, step_s: float, generate_s: float, evaluate_s: float = 0.0) -> float:
    """Return the seconds for which an episode holds its environment, from the times of its parts.

    >>> episode_s(reset_s=25, steps=7, step_s=3, generate_s=4)
    74
    """
    return reset_s + steps * (step_s + generate_s) + evaluate_s


def bounds(work: Work, lag: int) -> dict[str, float]:
    """Return the least seconds of an iteration that each part of the system allows, by its name; the largest binds.

    `environments`: the seconds of all its episodes over the number of environments. `engine`, `trainer` and `driver`:
    what each needs for it. `lag`: a group that begins with the weights of an update is learned from `lag` updates
    later at the latest. In the meantime pass `lag + 1` iterations less an update, and its slowest episode has to fit:
    (E[max] + trainer) / (lag + 1), where the maximum is over the episodes of an iteration.
    """
    count, longest = work.groups_per_iteration, [max(group) for group in work.groups]
    return {
        "environments": count * fmean(sum(group) for group in work.groups) / work.environments,
        "engine": work.engine_s,
        "trainer": work.trainer_s,
        "driver": work.driver_s,
        "lag": (_expected_maximum(longest, count) + work.trainer_s) / (lag + 1),
    }


def _expected_maximum(values: Sequence[float], draws: int) -> float:
    """Return the mean of the largest of k draws: of n values in order, the i-th is it at (i/n)^k - ((i-1)/n)^k."""
    chances = [(place / len(values)) ** draws for place in range(len(values) + 1)]
    pairs = zip(sorted(values), chances, chances[1:], strict=False)
    return sum(value * (upper - lower) for value, lower, upper in pairs)


def iteration_s(work: Work, lag: int, order: Order = "submitted") -> float:
    """Return the seconds of an iteration with this `max_policy_lag`, in the long run; lag 0 is taking turns.

    Groups are drawn from the measured ones, always in the same random order. Every member begins on the environment
    that is free first. The update of an iteration begins when the one before it has ended and its groups have; at its
    end as many new groups are admitted. It is not below what engine and driver need.
    """
    check_at_least(0, lag=lag)
    played = _Play(work, lag, order)
    ends = [played.update() for _ in range(ITERATIONS + 2 * lag + 1)]
    return max((ends[-1] - ends[2 * lag]) / ITERATIONS, work.engine_s, work.driver_s)


def speedup(work: Work, lag: int, order: Order = "submitted") -> float:
    """Return how many times as fast as taking turns a run with this lag is; 1 where there is nothing to overlap.

    Where the update takes long beside the rollout, or one environment plays everything, this is near 1, and no lag
    helps.
    """
    return iteration_s(work, 0) / iteration_s(work, lag, order)


class _Play:
    """The collector's rules with measured episodes, one update after the other."""

    def __init__(self, work: Work, lag: int, order: Order) -> None:
        self._work = work
        self._lag = lag
        self._order = order
        self._random = random.Random(0)
        self._free = [0.0] * work.environments
        self._ends: list[float] = []
        """The ends of the updates."""
        self._waiting: list[tuple[float, float]] = []
        """Begin and end of every group that no update has taken, in the order in which they were admitted."""
        for _ in range((lag + 1) * work.groups_per_iteration):
            self._admit(0.0)

    def update(self) -> float:
        """Take the groups of the next update, admit as many new ones behind it, and return when it ended."""
        if self._order == "finished":
            self._waiting.sort(key=self._urgency)
        count = self._work.groups_per_iteration
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        begin = max([end for _, end in taken] + self._ends[-1:])
        self._ends.append(begin + self._work.trainer_s)
        for _ in taken:
            self._admit(self._ends[-1])
        return self._ends[-1]

    def _urgency(self, group: tuple[float, float]) -> tuple[bool, float]:
        """Return a key by which those that the next update could not take any more go first, then who ended first."""
        begin, end = group
        updates = len(self._ends)
        if updates < self._lag:
            return True, end
        fresh_from = self._ends[updates - self._lag] if self._lag else math.inf
        return begin >= fresh_from, end

    def _admit(self, now: float) -> None:
        """Begin a group, each member on the environment that is free first."""
        begins, ends = [], []
        for seconds in self._random.choice(self._work.groups):
            begins.append(max(now, self._free[0]))
            ends.append(begins[-1] + seconds)
            heapq.heapreplace(self._free, ends[-1])
        self._waiting.append((begins[0], max(ends)))
