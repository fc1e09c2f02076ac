"""The choice of the next task, the statistics that an adaptive choice reads, and seeds."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from arpo.algorithms.rewards import is_success
from arpo.bounds import AtLeastOne, checked
from arpo.errors import ConfigError
from arpo.types import Task, Trajectory


def derive_seed(*parts: str | int) -> int:
    """Return a seed in [0, 2**63) that is a pure function of `parts`, the same in every process and version.

    Parts keep their type and their borders: `("1", 2)`, `(1, 2)` and `("12",)` give three different seeds.

    >>> derive_seed(0, 1, "task", 2, 3) == derive_seed(0, 1, "task", 2, 3)
    True
    """
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One group asked for. `None` means: the run's own setting."""

    task: Task
    group_size: int | None = None
    max_steps: int | None = None


RequestRule = Callable[[Task, "TaskRecord"], int | None]
"""A number of a request from what came of its task so far; None leaves it to the run's own setting."""


class TaskSampler(Protocol):
    """A choice of the next group to collect; everything it knows is in its state, or in the statistics it is shown.

    It is asked for one group at a time, when an environment is free for it and `max_policy_lag` allows it. The
    caller asks in a fixed order, from one thread, and never while the state is read.

    Attributes:
        tasks: Every task that it may ask for, by id.
        tasks_per_iteration: The number of groups that one update learns from.
    """

    tasks: Mapping[str, Task]
    tasks_per_iteration: int

    def next(self, statistics: "TaskStatistics") -> TaskRequest:
        """Return the next group to collect.

        Args:
            statistics: What came of the groups that updates have learned from so far, in the order of their batches.
                With `max_policy_lag` 0 all groups of an iteration are asked for under the same statistics.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return built-ins from which `load_state_dict` continues exactly.

        Statistics are no part of it: the collector keeps them in the checkpoint.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where the sampler that gave `state` stood."""
        ...


@checked
class ShuffledTasks:
    """Every task once an epoch, in a new order each epoch; the same number of tasks every iteration.

    An iteration may reach over the border of two epochs, and then a task may stand in it twice (two groups).

    Args:
        tasks: What to learn.
        tasks_per_iteration: Groups of an iteration.
        seed: Of the order.
        group_size: Says how many episodes a group has; by default what the run's settings say.
        max_steps: Says where an episode ends; by default what the task or the run's settings say.
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
        """Return the next task of the epoch."""
        epoch, place = divmod(self._taken, len(self.tasks))
        self._taken += 1
        # The order of an epoch is a function of the seed and the epoch, so the state is one number.
        order = random.Random(derive_seed(self._seed, "epoch", epoch)).sample(list(self.tasks), len(self.tasks))
        return self.request(order[place], statistics)

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
    """Of the last episodes, oldest first."""
    lengths: list[int] = field(default_factory=list)
    """Steps of the last episodes, oldest first."""
    visits: int = 0
    """Finished episodes, ever."""
    solved: int = 0
    """Successes, ever."""
    failures: int = 0
    """Episodes lost to the infrastructure, ever."""
    longest_success: int | None = None
    """Steps of the longest episode that succeeded, ever."""

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
