"""A throughput model: from measured times, how long an iteration takes and which part of the system limits it.

Two answers, both in seconds an iteration. `bounds` is arithmetic: no schedule is faster than the busiest of
environments, engine, trainer, driver and cores, nor than the slowest episode within the lag. `iteration_s` plays the
measured episodes through the rules of the collector (first come first served, at most `lag + 1` iterations admitted
and not yet learned from), so it knows what they cost together. `docs/decoupling.md` has both beside what was measured.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from arpo.bounds import AtLeastOne, NotNegative, NotNegativeInt, checked
from arpo.errors import ConfigError

ITERATIONS = 60
"""Iterations that are played: a multiple of lag + 1 for every lag up to 5, because what waits for one slow episode
ends together, and enough that another random order changes their mean by about 2 %."""


@checked
@dataclass(frozen=True, slots=True)
class Work:
    """The work of an iteration, as it was measured. Everything is in seconds."""

    groups: Sequence[Sequence[float]]
    """Every episode from the begin of its reset to the end of its evaluation, a row a group. It should not hold what
    an episode waited for a version; those of several iterations are better than those of one."""
    groups_per_iteration: AtLeastOne
    environments: AtLeastOne
    update_s: NotNegative
    """From the moment at which the trainer has its rollouts until the engine serves the policy that it made of them:
    update and sync."""
    rest_s: NotNegative = 0.0
    """Everything else that the trainer does before it asks for the next rollouts: evaluation, checkpoint."""
    reset_s: NotNegative = 0.0
    """The reset of an episode, which needs no policy: with a lag it goes on during the update."""
    engine_s: NotNegative = 0.0
    """The time that the engine would take for an iteration if it were always full; 0 where that is not known."""
    driver_s: NotNegative = 0.0
    """Processor time of the driver's event loop for an iteration."""
    cores_s: NotNegative = 0.0
    """The time that all cores of the driver's machine take for what is done there in an iteration, were they never
    idle. Trainer, engine and environments that share them cannot go on side by side."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError("groups must hold the episodes of at least one group")


def bounds(work: Work, lag: int) -> dict[str, float]:
    """Return the least seconds of an iteration that each part of the system allows, by its name; the largest binds.

    `environments`: the seconds of all its episodes over the number of environments. `engine`, `trainer`, `driver` and
    `cores`: what each needs for it. `lag`: an episode that asks version v for its first response is learned from in
    the update v + `lag` at the latest, so `lag + 1` iterations hold an update and the slowest of their episodes:
    (E[max] + update) / (lag + 1), less the reset that goes on during the update. With lag 0 that is taking turns.
    """
    count, longest = work.groups_per_iteration, [max(group) for group in work.groups]
    turn = _expected_maximum(longest, count) + work.update_s
    return {
        "environments": count * fmean(sum(group) for group in work.groups) / work.environments,
        "engine": work.engine_s,
        "trainer": work.update_s + work.rest_s,
        "driver": work.driver_s,
        "cores": work.cores_s,
        "lag": (turn - min(work.reset_s, work.update_s)) / (lag + 1) if lag else turn + work.rest_s,
    }


@checked
def iteration_s(work: Work, lag: NotNegativeInt) -> float:
    """Return the seconds of an iteration with this `max_policy_lag`, in the long run; lag 0 is taking turns.

    Groups are drawn from the measured ones, always in the same random order. Every member begins on the environment
    that is free first. An update begins when the trainer is free and the groups of its iteration have ended. As many
    new ones are admitted then: their environments are reset, and ask for a response when the update has ended.
    """
    played = _Play(work, lag)
    ends = [played.update() for _ in range(ITERATIONS + 2 * lag + 1)]
    return max((ends[-1] - ends[2 * lag]) / ITERATIONS, work.engine_s, work.driver_s, work.cores_s)


def _expected_maximum(values: Sequence[float], draws: int) -> float:
    """Return the mean of the largest of k draws: of n values in order, the i-th is it at (i/n)^k - ((i-1)/n)^k."""
    chances = [(place / len(values)) ** draws for place in range(len(values) + 1)]
    pairs = zip(sorted(values), chances, chances[1:], strict=False)
    return sum(value * (upper - lower) for value, lower, upper in pairs)


class _Play:
    """The collector's rules with measured episodes, one update after the other."""

    def __init__(self, work: Work, lag: int) -> None:
        self._work = work
        self._lag = lag
        self._random = random.Random(0)
        self._free = [0.0] * work.environments
        self._ends: list[float] = []
        """The end of every group that no update has taken."""
        self._idle_from = 0.0
        """The moment from which the trainer waits for rollouts."""
        self._admit((lag + 1) * work.groups_per_iteration, 0.0, 0.0)

    def update(self) -> float:
        """Take the groups of an iteration, let others come, and return when the trainer asks for the next ones."""
        work, count = self._work, self._work.groups_per_iteration
        taken, self._ends = self._ends[:count], self._ends[count:]
        begin = max(self._idle_from, *taken)
        served = begin + work.update_s
        self._idle_from = served + work.rest_s
        if self._lag:
            self._admit(count, begin, served)
        else:
            self._admit(count, self._idle_from, self._idle_from)
        return self._idle_from

    def _admit(self, count: int, now: float, served: float) -> None:
        """Begin groups, each member on the environment that is free first; it may ask the engine from `served` on."""
        reset_s = self._work.reset_s
        for _ in range(count):
            ends = []
            for seconds in self._random.choice(self._work.groups):
                ready = max(now, self._free[0]) + reset_s
                ends.append(max(ready, served) + seconds - reset_s)
                heapq.heapreplace(self._free, ends[-1])
            self._ends.append(max(ends))
