"""Replay injection: what makes GRPO into ARPO (arXiv 2505.16282, section 3.5), and DART's experience pool."""

import logging
from dataclasses import replace
from typing import Any

import lightning as L
from typing_extensions import override

from arpo.errors import ConfigError
from arpo.replay import ReplayBuffer
from arpo.rollout.curation.experience import ExperiencePool
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Group, RolloutBatch, Trajectory

log = logging.getLogger(__name__)


class BufferCallback(RolloutCallback):
    """A callback with a replay buffer; checkpoints have its state as references into the trajectory store."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._store: TrajectoryStore | None = None
        """That of the run; None on other ranks than 0."""
        self._restored: dict[str, Any] | None = None

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if trainer.is_global_zero:
            self._store = runtime_of(trainer).store

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._restored is not None and self._store is not None:
            self.buffer.load_state_dict(self._restored, self._store.get)
            log.info("the replay buffer of %s holds %d trajectories again", type(self).__name__, len(self.buffer))
            self._restored = None

    def load_screenshots(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory of the buffer with its screenshots."""
        assert self._store is not None, "rollouts end on rank 0"
        return self._store.load_screenshots(trajectory)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict["buffer"]


class ReplayInjection(BufferCallback):
    """The callback that puts one past success into every group that failed as a whole, then remembers new successes.

    A trajectory is never its own replay. Without this callback the run is GRPO.

    Args:
        buffer: Holds the successes.
        pool: Successes collected beforehand, which the buffer of a new run starts with (DART, arXiv 2509.23866).
        remembers: Whether new successes are remembered, as in ARPO; otherwise what was collected beforehand stays.
    """

    def __init__(self, buffer: ReplayBuffer, *, pool: ExperiencePool | None = None, remembers: bool = True) -> None:
        if pool is None and not remembers:
            raise ConfigError("remembers=false leaves a buffer empty that has no pool: set pool, or remembers=true")
        super().__init__(buffer)
        self.pool = pool
        self.remembers = remembers

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        begins, buffer = self._restored is None, self.buffer
        super().on_train_start(trainer, pl_module)
        if begins and self.pool is not None and trainer.is_global_zero:
            most = buffer.capacity_per_task
            for group in self.pool.move_into(runtime_of(trainer), buffer.is_worth_replaying, most):
                buffer.admit(group)

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        collected = list(batch.groups)
        batch.groups = [self._inject(group) for group in collected]
        if self.remembers:
            self.buffer.admit_all([*collected, *batch.leftovers])
        replayed = [group.trajectories[position] for group in batch.groups for position in group.injected]
        metrics = {f"replay/{name}": value for name, value in self.buffer.metrics(batch.policy_version).items()}
        metrics["replay/injected"] = float(len(replayed))
        if replayed:
            ages = [batch.policy_version - trajectory.policy_version for trajectory in replayed]
            metrics["replay/injected_age"] = sum(ages) / len(ages)
        module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def _inject(self, group: Group) -> Group:
        injected = self.buffer.inject(group)
        if injected is group:
            return group
        trajectories = list(injected.trajectories)
        for position in injected.injected:
            trajectories[position] = self.load_screenshots(trajectories[position])
        return replace(injected, trajectories=tuple(trajectories))
