"""A curriculum in stages from easy to hard, as in CRAFT-GUI (arXiv 2508.11360): short tasks first."""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from typing_extensions import override

from arpo.errors import ConfigError, check_at_least
from arpo.rollout.sampler import RequestRule, ShuffledTasks, TaskRequest, TaskStatistics
from arpo.rollout.seeds import derive_seed
from arpo.types import Task


class StagedCurriculum(ShuffledTasks):
    """Tasks in epochs whose tasks are those of a stage: the easiest at first, and in the last stage all of them.

    A task is easier the shorter it is: by its own step limit, or where it has none by the mean length of its
    successes in the window of the statistics; without a success it is hardest. Of equal lengths that with the higher
    success rate is easier. At first all tasks are drawn until each has been tried. Then stage k of n has the easiest
    k/n of them, ordered anew as it begins, so that no stage forgets those before it. A stage ends with the epoch in
    which it has had its iterations, or in which the mean success rate of its tasks has passed the threshold. The paper
    says neither number. Evaluations know nothing of this.

    Args:
        tasks: See `ShuffledTasks`, as for all that are not below.
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
        stages: int = 3,
        stage_iterations: int = 20,
        threshold: float = 0.7,
        group_size: RequestRule | None = None,
        max_steps: RequestRule | None = None,
    ) -> None:
        super().__init__(tasks, tasks_per_iteration, seed, group_size=group_size, max_steps=max_steps)
        check_at_least(1, stages=stages, stage_iterations=stage_iterations)
        if not 0 < threshold <= 1:
            raise ConfigError(f"threshold must lie in (0, 1], got {threshold}; it is a success rate")
        if stages > len(self.tasks):
            raise ConfigError(f"stages={stages} are more than the {len(self.tasks)} tasks: lower stages")
        self._stages, self._groups, self._threshold = stages, stage_iterations * tasks_per_iteration, threshold
        self._stage = self._began = self._epoch = 0
        self._drawn = list(self.tasks)
        self._left: list[str] = []

    @override
    def next(self, statistics: TaskStatistics) -> TaskRequest:
        if not self._left:
            if self._stage < self._stages and self._is_over(statistics):
                self._stage, self._began = self._stage + 1, self._taken
                order = sorted(self.tasks, key=lambda task_id: self._difficulty(task_id, statistics))
                self._drawn = order[: math.ceil(len(order) * self._stage / self._stages)]
            chance = random.Random(derive_seed(self._seed, "epoch", self._epoch))
            self._left = chance.sample(self._drawn, len(self._drawn))
            self._epoch += 1
        self._taken += 1
        return self.request(self._left.pop(0), statistics)

    def _is_over(self, statistics: TaskStatistics) -> bool:
        """Return whether the next epoch belongs to the next stage."""
        records = [statistics[task_id] for task_id in self._drawn]
        if self._stage == 0:  # an episode that the infrastructure lost is a try: nobody waits for a broken task
            return all(record.visits or record.failures for record in records)
        rate = fmean(record.success_rate or 0.0 for record in records)
        return self._taken - self._began >= self._groups or rate > self._threshold

    def _difficulty(self, task_id: str, statistics: TaskStatistics) -> tuple[float, float]:
        """Return what tasks are ordered by; those of one difficulty stay in the order of the list."""
        record, limit = statistics[task_id], self.tasks[task_id].max_steps
        pairs = zip(record.lengths, record.successes, strict=True)
        lengths = [length for length, succeeded in pairs if succeeded]
        length = float(limit) if limit is not None else fmean(lengths) if lengths else math.inf
        return length, -(record.success_rate or 0.0)

    @override
    def state_dict(self) -> dict[str, Any]:
        own = {"stage": self._stage, "began": self._began, "epoch": self._epoch}
        return super().state_dict() | own | {"drawn": list(self._drawn), "left": list(self._left)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._stage, self._began, self._epoch = state["stage"], state["began"], state["epoch"]
        self._drawn, self._left = list(state["drawn"]), list(state["left"])
