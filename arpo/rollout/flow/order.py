"""The choice of the groups that an update learns from, among those that were asked for."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

Order = Literal["submitted", "finished"]
"""`submitted`: an iteration learns from the groups in the order in which they were asked for. `finished`: from those
that ended first, and from those that would be stale at the next iteration, for which it waits."""


class Candidate(Protocol):
    """A group that was asked for and not yet learned from."""

    @property
    def number(self) -> int:
        """Its place in the order in which groups were asked for."""
        ...

    @property
    def ended_as(self) -> int | None:
        """Its place in the order in which groups ended; None while an episode of it runs."""
        ...

    @property
    def oldest(self) -> int | None:
        """The oldest policy version of its steps so far; None before the first one."""
        ...


C = TypeVar("C", bound=Candidate)


def choose(candidates: Iterable[C], count: int, order: Order, *, version: int, lag: int) -> list[C] | None:
    """Return the groups of the next update by their numbers, or None where it has to wait for one of them.

    In the order `finished`, a group must be learned from before its oldest step is more than `lag` versions old. As
    an update takes `count` groups, of those with h updates left at most h × `count` may stay behind: what is above
    is taken now. That is the rule of the earliest deadline, under which no group becomes stale as long as no more
    than (v + `lag` + 1) × `count` groups have had a step of version v or older when version v is learned from.

    Args:
        candidates: Every group that was asked for and not yet learned from.
        count: Groups that an update learns from.
        order: Which ones.
        version: Of the policy that learns.
        lag: Versions that a step may be old.
    """
    by_number = sorted(candidates, key=lambda group: group.number)
    if order == "submitted":
        chosen = by_number[:count]
        return chosen if len(chosen) == count and all(group.ended_as is not None for group in chosen) else None
    chosen = []
    for updates_left in range(lag + 1):
        due = [group for group in by_number if _updates_left(group, version, lag) <= updates_left]
        needed = min(len(due) - updates_left * count, count) - len(chosen)
        if not _take_first_ended(needed, due, chosen):
            return None
    if not _take_first_ended(count - len(chosen), by_number, chosen):
        return None
    return sorted(chosen, key=lambda group: group.number)


def _updates_left(group: Candidate, version: int, lag: int) -> float:
    """Return how many updates later than the next one may still learn from a group."""
    return float("inf") if group.oldest is None else group.oldest + lag - version


def _take_first_ended(needed: int, among: Sequence[C], chosen: list[C]) -> bool:
    """Add to `chosen` the groups that ended first; return whether there were enough of them."""
    ended = [(group.ended_as, group) for group in among if group.ended_as is not None and group not in chosen]
    ended.sort(key=lambda pair: pair[0])
    chosen += [group for _, group in ended[: max(needed, 0)]]
    return len(ended) >= needed
