"""Online data: tasks become rollout batches while training asks for them."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from arpo.errors import ConfigError
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import on_rank_zero, start_on_rank_zero
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import ShuffledTasks, TaskRequest
from arpo.rollout.stream import RequestedGroup, ResumeState, RolloutCollector
from arpo.types import RolloutBatch

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")


class Batches(IterableDataset[Batch]):
    """A known number of batches, for a `DataLoader` that passes them on as they are.

    `__len__` is not decoration: without it Lightning fetches one batch ahead, which would roll out the next iteration
    before the update of this one, and every rollout would be one policy version old.
    """

    def __init__(self, make: Callable[[], Iterator[Batch]], count: int) -> None:
        self._make = make
        self._count = count

    def __len__(self) -> int:
        return self._count

    @override
    def __iter__(self) -> Iterator[Batch]:
        return self._make()


class RolloutDataModule(L.LightningDataModule):
    """Source of one rollout batch an epoch: an epoch of the trainer is one iteration, a rollout and its update.

    The runtime of the collector is started with the fit, and closed after it. The sampler says what to roll out next.
    With the collector's `max_policy_lag` 0, an iteration is rolled out after the update before it (ARPO). With k,
    rollouts go on through updates, evaluations and checkpoints, up to k iterations ahead (DART).
    """

    def __init__(self, collector: RolloutCollector, sampler: ShuffledTasks) -> None:
        super().__init__()
        self.collector = collector
        self.sampler = sampler
        self._pending: list[RequestedGroup] = []
        """Asked for before this process began."""
        self._begun = False

    @property
    def runtime(self) -> RolloutRuntime:
        """The engine and the environments."""
        return self.collector.runtime

    @property
    def episodes_an_iteration(self) -> int:
        """The most that are rolled out."""
        return self.sampler.tasks_per_iteration * self.runtime.settings.group_size

    @override
    def setup(self, stage: str) -> None:
        start_on_rank_zero(self.trainer, self.runtime)

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(Batches(self._batches, 1), batch_size=None)

    @override
    def teardown(self, stage: str) -> None:
        self._begun = False
        self.collector.close()

    def _batches(self) -> Iterator[RolloutBatch]:
        yield self.next_batch()

    def next_batch(self) -> RolloutBatch:
        """Collect the batch of the trainer's current iteration; on other ranks than 0, an empty one."""
        assert self.trainer is not None
        iteration = self.trainer.current_epoch
        version = PolicyModule.of(self.trainer.lightning_module).policy_version
        last = None if self.trainer.max_epochs == -1 else self.trainer.max_epochs

        def collect() -> RolloutBatch:
            if not self._begun:  # once a process: forget what a crash undid, and go on with what was asked for
                course = ResumeState(iteration, version, self.sampler.tasks_per_iteration, last, self._pending)
                self.runtime.store.truncate(iteration, version, first_iteration=course.first_iteration)
                self.collector.begin(self.sampler, course)
                self._pending, self._begun = [], True
            return self.collector.take(iteration, version)

        return on_rank_zero(self.trainer, collect, elsewhere=RolloutBatch(iteration, version, []))

    @override
    def state_dict(self) -> dict[str, Any]:
        groups = {"tasks_per_iteration": self.sampler.tasks_per_iteration}
        if self._begun:
            return self.collector.state_dict() | groups
        return groups | {
            "sampler": self.sampler.state_dict(),
            "statistics": self.collector.statistics.state_dict(),
            "pending": [asked.record() for asked in self._pending],
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a run stood."""
        groups = state_dict["tasks_per_iteration"]
        if state_dict["pending"] and groups != self.sampler.tasks_per_iteration:
            raise ConfigError(
                f"the checkpoint holds {len(state_dict['pending'])} groups that were asked for ahead with "
                f"tasks_per_iteration={groups}, this run has {self.sampler.tasks_per_iteration}; resume with "
                f"{groups}, or start a new run"
            )
        self.sampler.load_state_dict(state_dict["sampler"])
        self.collector.statistics.load_state_dict(state_dict["statistics"])
        tasks = self.sampler.tasks
        self._pending = [
            RequestedGroup(number, TaskRequest(tasks[task_id], group_size, max_steps))
            for number, task_id, group_size, max_steps in state_dict["pending"]
        ]
