"""The choice of the next task, the statistics that an adaptive choice reads, and seeds."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any

from arpo.algorithms.rewards import is_success
from arpo.bounds import AtLeastOne, checked
from arpo.errors import ConfigError
from arpo.types import Task, Trajectory


def derive_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**63) that is a pure function of `parts`, the same in every process and version.

    Parts keep their type and their borders: `("1", 2)`, `(1, 2)` and `("12",)` give three different seeds.
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One group asked for; None means the run's own setting."""

    task: Task
    group_size: int | None = None
    max_steps: int | None = None


RequestRule = Callable[[Task, "TaskRecord"], int | None]
"""A number of a request from what came of its task so far; None leaves it to the run's own setting."""


@checked
class ShuffledTasks:
    """Every task once an epoch, in a new order each epoch; the base of every choice of the next group to collect.

    An iteration may reach over the border of two epochs, and then a task may stand in it twice (two groups). Groups
    are asked for when an environment is free and `max_policy_lag` allows it: in a fixed order, from one thread, and
    never while the state is read. All that a sampler knows is in its state, built-ins from which it goes on exactly,
    or in the statistics, which are no part of it.

    Args:
        tasks: What to learn.
        tasks_per_iteration: Groups of an iteration.
        seed: Of the order.
        group_size: The rule for the episodes of a group; None: the run's setting.
        max_steps: The rule for the step limit; None: that of the task or the run.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tasks_per_iteration: AtLeastOne,
        seed: int,
        *,
        group_size: RequestRule | None = None,
        max_steps: RequestRule | None = None,
    ) -> None:
        if not tasks:
            raise ConfigError("there is no task to train on: the task list is empty; name at least one task")
        self.tasks: Mapping[str, Task] = {task.id: task for task in tasks}
        if twice := sorted(task_id for task_id, times in Counter(task.id for task in tasks).items() if times > 1):
            raise ConfigError(f"task ids must be unique, but these stand twice in the list: {', '.join(twice)}")
        self.tasks_per_iteration = tasks_per_iteration
        self._seed = seed
        self._group_size = group_size
        self._max_steps = max_steps
        self._taken = 0

    def next(self, statistics: "TaskStatistics") -> TaskRequest:
        """Return the next group to collect.

        Args:
            statistics: Of the groups that updates have learned from so far, in the order of their batches. With
                `max_policy_lag` 0 all groups of an iteration are asked for under the same statistics.
        """
        self._taken += 1
        return self.request(self.shuffled(list(self.tasks), self._taken - 1), statistics)

    def shuffled(self, ids: Sequence[str], number: int, *stream: str) -> str:
        """Return the id that stands at a place, from 0, of epochs of ids one after the other, in a stream's orders."""
        epoch, place = divmod(number, len(ids))
        # The order of an epoch is a function of the seed and the epoch, so the state is one number.
        return random.Random(derive_seed(self._seed, *stream, "epoch", epoch)).sample(ids, len(ids))[place]

    def request(self, task_id: str, statistics: "TaskStatistics") -> TaskRequest:
        """Return the request of a task, with the numbers that its own record gives."""
        task, record = self.tasks[task_id], statistics[task_id]
        return TaskRequest(
            task,
            group_size=self._group_size(task, record) if self._group_size is not None else None,
            max_steps=self._max_steps(task, record) if self._max_steps is not None else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the number of tasks that were taken, and their list."""
        return {"taken": self._taken, "seed": self._seed, "tasks": list(self.tasks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the sampler that gave `state` stood."""
        if state["tasks"] != list(self.tasks) or state["seed"] != self._seed:
            raise ConfigError(
                f"the checkpoint was written with {len(state['tasks'])} tasks and sampler seed {state['seed']}, this "
                f"run has {len(self.tasks)} tasks and seed {self._seed}, or the same tasks in another order; resume "
                "with the same task list and seed, or start a new run"
            )
        self._taken = state["taken"]


@dataclass(slots=True)
class TaskRecord:
    """The record of one task."""

    successes: list[bool] = field(default_factory=list)
    """Of the last episodes, oldest first, as are `lengths`; all other numbers are of all episodes ever."""
    lengths: list[int] = field(default_factory=list)
    visits: int = 0
    """Finished episodes."""
    solved: int = 0
    failures: int = 0
    """Episodes lost to the infrastructure."""
    longest_success: int | None = None
    """Steps of the longest episode that succeeded."""

    @property
    def success_rate(self) -> float | None:
        """The share of successes in the window; None before the first episode."""
        return sum(self.successes) / len(self.successes) if self.successes else None


@checked
@dataclass(slots=True)
class TaskStatistics:
    """Success, length and failures a task, over a sliding window; rank 0 owns it and the checkpoint holds it."""

    window: AtLeastOne = 16
    success_threshold: float = 0.5
    _records: dict[str, TaskRecord] = field(default_factory=dict)

    def __getitem__(self, task_id: str) -> TaskRecord:
        """Return the record of a task; an empty one for a task never seen."""
        return self._records.setdefault(task_id, TaskRecord())

    def record(self, task_id: str, episodes: Iterable[Trajectory | None]) -> None:
        """Take episodes of a task into account, in their order; None is one that the infrastructure lost."""
        record = self[task_id]
        for trajectory in episodes:
            if trajectory is None:
                record.failures += 1
                continue
            succeeded, length = is_success(trajectory, threshold=self.success_threshold), len(trajectory.steps)
            record.successes.append(succeeded)
            record.lengths.append(length)
            if succeeded:
                record.longest_success = max(length, record.longest_success or 0)
            record.visits += 1
            record.solved += succeeded
        self._slide(record)

    def state_dict(self) -> dict[str, Any]:
        """Return every record as built-ins."""
        return {task_id: asdict(record) for task_id, record in self._records.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace every record; a shorter window than the one that was saved keeps the newest episodes."""
        self._records = {task_id: TaskRecord(**deepcopy(saved)) for task_id, saved in state.items()}
        for record in self._records.values():
            self._slide(record)

    def _slide(self, record: TaskRecord) -> None:
        del record.successes[: -self.window], record.lengths[: -self.window]
