"""MobileRL's failure curriculum filtering (arXiv 2509.18119): no episodes for tasks that nobody solves."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from typing_extensions import override

from arpo.errors import check_at_least
from arpo.rollout.sampler import RequestRule, ShuffledTasks, TaskRecord, TaskRequest, TaskStatistics
from arpo.rollout.seeds import derive_seed
from arpo.types import Task


@dataclass(slots=True)
class Failing:
    """The failures of a task."""

    epochs: int = 0
    """In a row in which it had episodes and no success."""
    cooling: int = 0
    """Epochs since it began to cool down."""
    visits: int = 0
    """Episodes that are counted in these numbers."""
    solved: int = 0
    """Successes among them."""
    dropped: bool = False
    """Whether it failed again after it had cooled down."""

    def look(self, record: TaskRecord, patience: int, cooldown: int) -> float:
        """Count what came of the task since the last look, and return its sampling weight in the next epoch."""
        if record.visits > self.visits:
            failed = record.solved == self.solved
            self.epochs = self.epochs + 1 if failed else 0
            self.dropped = failed and (self.dropped or self.cooling > cooldown)
        self.visits, self.solved = record.visits, record.solved
        self.cooling = self.cooling + 1 if self.epochs >= patience else 0
        if self.dropped:
            return 0.0
        return math.exp(-self.epochs) if 0 < self.cooling <= cooldown else 1.0


class FailureCurriculum(ShuffledTasks):
    """Every task once an epoch, but for those that keep failing.

    A task whose episodes all failed in `patience` epochs in a row cools down: in each of the next `cooldown` epochs
    its sampling weight is exp(-f), f being the epochs that it has failed in; that of all others is 1. Then it is tried
    once more, and if it fails again it is drawn no more: no task goes because it was not drawn. A success at any time
    brings it back. An epoch has as many tasks as their weights sum up to; where that is none, all begin anew. An epoch
    of few tasks may end before an update has learned from any of them: then the next one has the same tasks, and
    nothing cools. Evaluations know nothing of this.

    Args:
        tasks: See `ShuffledTasks`, as for all that are not below.
        patience: Epochs without a success until a task cools down; 2 in the paper.
        cooldown: Epochs of cooling down; 3 in the paper.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tasks_per_iteration: int,
        seed: int,
        *,
        patience: int = 2,
        cooldown: int = 3,
        group_size: RequestRule | None = None,
        max_steps: RequestRule | None = None,
    ) -> None:
        super().__init__(tasks, tasks_per_iteration, seed, group_size=group_size, max_steps=max_steps)
        check_at_least(1, patience=patience, cooldown=cooldown)
        self._patience, self._cooldown = patience, cooldown
        self._failing = {task_id: Failing() for task_id in self.tasks}
        self._epoch = -1
        self._drawn = list(self.tasks)
        self._left: list[str] = []

    @override
    def next(self, statistics: TaskStatistics) -> TaskRequest:
        if not self._left:
            self._epoch += 1
            chance = random.Random(derive_seed(self._seed, "epoch", self._epoch))
            if any(statistics[task_id].visits > each.visits for task_id, each in self._failing.items()):
                self._drawn = self._draw(statistics, chance)
            self._left = chance.sample(self._drawn, len(self._drawn))
        self._taken += 1
        return self.request(self._left.pop(0), statistics)

    def _draw(self, statistics: TaskStatistics, chance: random.Random) -> list[str]:
        """Return the tasks of an epoch, each with the probability of its weight (systematic sampling)."""
        weights = {
            task_id: failing.look(statistics[task_id], self._patience, self._cooldown)
            for task_id, failing in self._failing.items()
        }
        drawn, passed = [], chance.random()
        for task_id in chance.sample(list(weights), len(weights)):
            if int(passed + weights[task_id]) > int(passed):
                drawn.append(task_id)
            passed += weights[task_id]
        if not drawn:
            for failing in self._failing.values():
                failing.epochs, failing.cooling, failing.dropped = 0, 0, False
        return drawn or list(self.tasks)

    @override
    def state_dict(self) -> dict[str, Any]:
        failing = {task_id: asdict(each) for task_id, each in self._failing.items()}
        own = {"epoch": self._epoch, "drawn": list(self._drawn), "left": list(self._left), "failing": failing}
        return super().state_dict() | own

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._epoch, self._drawn, self._left = state["epoch"], list(state["drawn"]), list(state["left"])
        self._failing = {task_id: Failing(**each) for task_id, each in state["failing"].items()}
