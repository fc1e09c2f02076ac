"""MobileRL's failure curriculum filtering (arXiv 2509.18119): no episodes for tasks that nobody solves."""

import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from typing_extensions import override

from arpo.errors import check_at_least
from arpo.rollout.sampler import ShuffledTasks, TaskRecord, TaskRequest, TaskStatistics
from arpo.rollout.seeds import derive_seed


@dataclass(slots=True)
class Failing:
    """How long a task has failed."""

    epochs: int = 0
    """In a row in which it had episodes and no success."""
    cooling: int = 0
    """Epochs since it began to cool down."""
    visits: int = 0
    """Episodes that are counted in these numbers."""

    def look(self, record: TaskRecord) -> None:
        """Count what came of the task since the last look."""
        new, self.visits = record.visits - self.visits, record.visits
        if new:
            self.epochs = 0 if any(record.successes[-new:]) else self.epochs + 1


class FailureCurriculum(ShuffledTasks):
    """Every task once an epoch, but for those that keep failing.

    A task whose episodes all failed in `patience` epochs in a row cools down: in each of the next `cooldown` epochs it
    is drawn with probability exp(-f), f being the epochs that it has failed in. A success brings it back; else it is
    drawn no more. Where no task would be left, all are drawn. Evaluations know nothing of this.

    Args:
        patience: Epochs without a success until a task cools down; 2 in the paper.
        cooldown: Epochs of cooling down; 3 in the paper.
        options: See `ShuffledTasks`.

    Raises:
        ConfigError: When a number is below 1; see also `ShuffledTasks`.
    """

    def __init__(self, *arguments: Any, patience: int = 2, cooldown: int = 3, **options: Any) -> None:
        super().__init__(*arguments, **options)
        check_at_least(1, patience=patience, cooldown=cooldown)
        self._patience, self._cooldown = patience, cooldown
        self._failing = {task_id: Failing() for task_id in self.tasks}
        self._epoch = -1
        self._left: list[str] = []

    @override
    def next(self, statistics: TaskStatistics) -> TaskRequest:
        while not self._left:
            self._epoch += 1
            self._left = self._drawn(statistics)
        self._taken += 1
        return self.request(self._left.pop(0), statistics)

    def _drawn(self, statistics: TaskStatistics) -> list[str]:
        """Return the tasks of an epoch in their order."""
        chance = random.Random(derive_seed(self._seed, "epoch", self._epoch))
        drawn = []
        for task_id in chance.sample(list(self.tasks), len(self.tasks)):
            failing, luck = self._failing[task_id], chance.random()
            failing.look(statistics[task_id])
            cools = failing.epochs >= self._patience
            failing.cooling = failing.cooling + 1 if cools else 0
            if not cools or (failing.cooling <= self._cooldown and luck < math.exp(-failing.epochs)):
                drawn.append(task_id)
        if all(failing.cooling > self._cooldown for failing in self._failing.values()):
            return chance.sample(list(self.tasks), len(self.tasks))
        return drawn

    @override
    def state_dict(self) -> dict[str, Any]:
        failing = {task_id: asdict(each) for task_id, each in self._failing.items()}
        return super().state_dict() | {"epoch": self._epoch, "left": list(self._left), "failing": failing}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._epoch, self._left = state["epoch"], list(state["left"])
        self._failing = {task_id: Failing(**each) for task_id, each in state["failing"].items()}
