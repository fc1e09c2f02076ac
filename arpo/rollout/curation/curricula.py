"""Curricula: epochs without tasks that are never solved (MobileRL), and stages from easy to hard (CRAFT-GUI)."""

import math
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from typing_extensions import override

from arpo.bounds import AtLeastOne, PositiveShare, checked
from arpo.errors import ConfigError
from arpo.rollout.sampler import RequestRule, ShuffledTasks, TaskRecord, TaskRequest, TaskStatistics, derive_seed
from arpo.types import Task


class Curriculum(ShuffledTasks):
    """Tasks in epochs, each of which has the tasks that `draw` chooses, in a new order; evaluations have all."""

    def __init__(
        self, tasks: Sequence[Task], tasks_per_iteration: int, seed: int, **rules: RequestRule | None
    ) -> None:
        super().__init__(tasks, tasks_per_iteration, seed, **rules)
        self._epoch = 0
        self._drawn = list(self.tasks)
        self._left: list[str] = []

    @abstractmethod
    def draw(self, statistics: TaskStatistics, chance: random.Random) -> list[str]:
        """Return the ids of the tasks of the next epoch."""

    @override
    def next(self, statistics: TaskStatistics) -> TaskRequest:
        if not self._left:
            chance = random.Random(derive_seed(self._seed, "epoch", self._epoch))
            self._drawn = self.draw(statistics, chance)
            self._left = chance.sample(self._drawn, len(self._drawn))
            self._epoch += 1
        self._taken += 1
        return self.request(self._left.pop(0), statistics)

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"epoch": self._epoch, "drawn": list(self._drawn), "left": list(self._left)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._epoch, self._drawn, self._left = state["epoch"], list(state["drawn"]), list(state["left"])


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


@checked
class FailureCurriculum(Curriculum):
    """MobileRL's failure curriculum filtering (arXiv 2509.18119): no episodes for tasks that keep failing.

    A task whose episodes all failed in `patience` epochs in a row cools down: in each of the next `cooldown` epochs
    its sampling weight is exp(-f), f being the epochs that it has failed in; that of all others is 1. Then it is tried
    once more, and if it fails again it is drawn no more. A success at any time brings it back. An epoch has as many
    tasks as their weights sum up to; where that is none, all begin anew. An epoch that ends before an update has
    learned from any of its tasks is followed by one of the same tasks, and nothing cools.

    Arguments that are not below are those of `ShuffledTasks`.

    Args:
        patience: Epochs without a success until a task cools down; 2 in the paper.
        cooldown: Epochs of cooling down; 3 in the paper.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tasks_per_iteration: int,
        seed: int,
        *,
        patience: AtLeastOne = 2,
        cooldown: AtLeastOne = 3,
        group_size: RequestRule | None = None,
        max_steps: RequestRule | None = None,
    ) -> None:
        super().__init__(tasks, tasks_per_iteration, seed, group_size=group_size, max_steps=max_steps)
        self._patience, self._cooldown = patience, cooldown
        self._failing = {task_id: Failing() for task_id in self.tasks}

    @override
    def draw(self, statistics: TaskStatistics, chance: random.Random) -> list[str]:
        failing = self._failing
        if all(statistics[task_id].visits <= each.visits for task_id, each in failing.items()):
            return self._drawn
        weights = {id: each.look(statistics[id], self._patience, self._cooldown) for id, each in failing.items()}
        drawn, passed = [], chance.random()  # systematic sampling
        for task_id in chance.sample(list(weights), len(weights)):
            if int(passed + weights[task_id]) > int(passed):
                drawn.append(task_id)
            passed += weights[task_id]
        if not drawn:
            for each in failing.values():
                each.epochs, each.cooling, each.dropped = 0, 0, False
        return drawn or list(self.tasks)

    @override
    def state_dict(self) -> dict[str, Any]:
        own = super().state_dict()
        own["epoch"] -= 1  # checkpoints name the running epoch, not the next one
        return own | {"failing": {task_id: asdict(each) for task_id, each in self._failing.items()}}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._epoch += 1
        self._failing = {task_id: Failing(**each) for task_id, each in state["failing"].items()}


@checked
class StagedCurriculum(Curriculum):
    """Stages from easy to hard, as in CRAFT-GUI (arXiv 2508.11360): the easiest tasks first, all in the last stage.

    A task is easier the shorter it is: by its own step limit, or where it has none by the mean length of its
    successes in the window of the statistics; without a success it is hardest. Of equal lengths that with the higher
    success rate is easier. At first all tasks are drawn until each has been tried. Then stage k of n has the easiest
    k/n of them, ordered anew as it begins, so that no stage forgets those before it. A stage ends with the epoch in
    which it has had its iterations, or in which the mean success rate of its tasks has passed the threshold. The paper
    says neither number.

    Arguments that are not below are those of `ShuffledTasks`.

    Args:
        stages: Their number.
        stage_iterations: The most iterations of a stage before the last.
        threshold: The success rate that ends a stage sooner; 1 never does, as a rate must pass it.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        tasks_per_iteration: int,
        seed: int,
        *,
        stages: AtLeastOne = 3,
        stage_iterations: AtLeastOne = 20,
        threshold: PositiveShare = 0.7,
        group_size: RequestRule | None = None,
        max_steps: RequestRule | None = None,
    ) -> None:
        super().__init__(tasks, tasks_per_iteration, seed, group_size=group_size, max_steps=max_steps)
        if stages > len(self.tasks):
            raise ConfigError(f"stages={stages} are more than the {len(self.tasks)} tasks: lower stages")
        self._stages, self._groups, self._threshold = stages, stage_iterations * tasks_per_iteration, threshold
        self._stage = self._began = 0

    @override
    def draw(self, statistics: TaskStatistics, chance: random.Random) -> list[str]:
        if self._stage == self._stages or not self._is_over(statistics):
            return self._drawn
        self._stage, self._began = self._stage + 1, self._taken
        order = sorted(self.tasks, key=lambda task_id: self._difficulty(task_id, statistics))
        return order[: math.ceil(len(order) * self._stage / self._stages)]

    def _is_over(self, statistics: TaskStatistics) -> bool:
        records = [statistics[task_id] for task_id in self._drawn]
        if self._stage == 0:  # an episode that the infrastructure lost is a try: a broken task holds nothing up
            return all(record.visits or record.failures for record in records)
        rate = fmean(record.success_rate or 0.0 for record in records)
        return self._taken - self._began >= self._groups or rate > self._threshold

    def _difficulty(self, task_id: str, statistics: TaskStatistics) -> tuple[float, float]:
        """Return a key to order tasks by; those of one difficulty stay in the order of the list."""
        record, limit = statistics[task_id], self.tasks[task_id].max_steps
        pairs = zip(record.lengths, record.successes, strict=True)
        lengths = [length for length, succeeded in pairs if succeeded]
        length = float(limit) if limit is not None else fmean(lengths) if lengths else math.inf
        return length, -(record.success_rate or 0.0)

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"stage": self._stage, "began": self._began}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._stage, self._began = state["stage"], state["began"]
