"""Shares: how many groups each part of a mixture gets."""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from arpo.bounds import AtLeastOne, Positive, checked
from arpo.envs.mixture import part_of
from arpo.errors import ConfigError
from arpo.rollout.sampler import RequestRule, ShuffledTasks, TaskRequest, TaskStatistics
from arpo.types import Task


@checked
class SharedTasks(ShuffledTasks):
    """The parts of a mixture by their shares, and of each part every task once in an epoch of its own.

    The next group is of the part that is furthest behind its share of the groups so far, the first one of equals: so
    the parts stand evenly among each other, and an iteration whose size their shares divide has just these.

    Arguments that are not below are those of `ShuffledTasks`.

    Args:
        shares: The weight of each part, by its name; they need not sum up to 1.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tasks_per_iteration: AtLeastOne,
        seed: int,
        *,
        shares: Mapping[str, Positive],
        group_size: RequestRule | None = None,
        max_steps: RequestRule | None = None,
    ) -> None:
        super().__init__(tasks, tasks_per_iteration, seed, group_size=group_size, max_steps=max_steps)
        self._ids: dict[str, list[str]] = {}
        for task_id in self.tasks:
            self._ids.setdefault(part_of(task_id), []).append(task_id)
        if set(shares) != set(self._ids):
            raise ConfigError(f"shares has {', '.join(shares)}, and the tasks are of the parts {', '.join(self._ids)}")
        self._shares = {part: weight / sum(shares.values()) for part, weight in shares.items()}
        self._taken_of = dict.fromkeys(shares, 0)

    @override
    def next(self, statistics: TaskStatistics) -> TaskRequest:
        self._taken += 1
        part = max(self._shares, key=lambda each: self._shares[each] * self._taken - self._taken_of[each])
        self._taken_of[part] += 1
        return self.request(self.shuffled(self._ids[part], self._taken_of[part] - 1, part), statistics)

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"taken_of": dict(self._taken_of)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._taken_of = dict(state["taken_of"])
