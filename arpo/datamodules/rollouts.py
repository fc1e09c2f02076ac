"""Online data: tasks become rollout batches while training asks for them."""

import logging
from collections.abc import Iterator
from typing import Any

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from arpo.modules.base import PolicyModule
from arpo.rollout.collector import RolloutCollector
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import TaskRequest, TaskSampler
from arpo.types import RolloutBatch

log = logging.getLogger(__name__)


class RolloutDataModule(L.LightningDataModule):
    """Source of one rollout batch an epoch: an epoch of the trainer is one iteration, a rollout and its update.

    Args:
        collector: Collects the episodes; its runtime is started with the fit, and closed after it.
        sampler: Says what to roll out next.

    With the collector's `max_policy_lag` 0, an iteration is rolled out after the update before it (ARPO). With k, the
    rollouts of the next k iterations go on while the trainer updates (DART).
    """

    def __init__(self, collector: RolloutCollector, sampler: TaskSampler) -> None:
        super().__init__()
        self.collector = collector
        self.sampler = sampler
        self._pending: dict[int, list[TaskRequest]] = {}
        self._begun = False

    @property
    def runtime(self) -> RolloutRuntime:
        """The engine and the environments."""
        return self.collector.runtime

    @override
    def setup(self, stage: str) -> None:
        if self._rank == 0:
            self.runtime.start()

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(RolloutDataset(self), batch_size=None)

    @override
    def teardown(self, stage: str) -> None:
        self.collector.close()

    @property
    def _rank(self) -> int:
        return self.trainer.global_rank if self.trainer is not None else 0

    def next_batch(self) -> RolloutBatch:
        """Collect the batch of the trainer's current iteration; on other ranks than 0, an empty one."""
        assert self.trainer is not None
        iteration = self.trainer.current_epoch
        version = PolicyModule.of(self.trainer.lightning_module).policy_version
        if self._rank != 0:
            return RolloutBatch(iteration, version, [])
        self._begin(iteration)
        last = min(iteration + self.collector.settings.max_policy_lag, (self.trainer.max_epochs or iteration + 1) - 1)
        for ahead in range(iteration, last + 1):
            if ahead not in self._pending:
                groups = range(self.sampler.tasks_per_iteration)
                self._pending[ahead] = [self.sampler.next(self.collector.statistics) for _ in groups]
                self.collector.submit(ahead, self._pending[ahead])
        batch = self.collector.wait(iteration, version)
        del self._pending[iteration]
        return batch

    def _begin(self, iteration: int) -> None:
        """Once a process: forget records of iterations that a crash undid, and ask again for what was pending."""
        if self._begun:
            return
        self._begun = True
        self.runtime.store.truncate(after_iteration=iteration)
        for pending, requests in self._pending.items():
            self.collector.submit(pending, requests)

    @override
    def state_dict(self) -> dict[str, Any]:
        pending = {
            iteration: [(request.task.id, request.group_size, request.max_steps) for request in requests]
            for iteration, requests in self._pending.items()
        }
        return {
            "sampler": self.sampler.state_dict(),
            "statistics": self.collector.statistics.state_dict(),
            "pending": pending,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state_dict["sampler"])
        self.collector.statistics.load_state_dict(state_dict["statistics"])
        tasks = self.sampler.tasks
        self._pending = {
            iteration: [
                TaskRequest(tasks[task_id], group_size, max_steps) for task_id, group_size, max_steps in requests
            ]
            for iteration, requests in state_dict["pending"].items()
        }


class RolloutDataset(IterableDataset[RolloutBatch]):
    """One rollout batch, collected when it is asked for.

    `__len__` is not decoration: without it Lightning fetches one batch ahead, which would roll out the next iteration
    before the update of this one, and every rollout would be one policy version old.
    """

    def __init__(self, datamodule: RolloutDataModule) -> None:
        self._datamodule = datamodule

    def __iter__(self) -> Iterator[RolloutBatch]:
        yield self._datamodule.next_batch()

    def __len__(self) -> int:
        return 1
