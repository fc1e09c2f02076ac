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
from arpo.types import Group, RolloutBatch

log = logging.getLogger(__name__)


class ReplayInjection(RolloutCallback):
    """The callback that puts one past success into every group that failed as a whole, then remembers new successes.

    The buffer holds successes of earlier iterations when it injects, so a trajectory is never its own replay. Its
    state travels in the checkpoint as references into the trajectory store. Without this callback the run is GRPO.

    Args:
        buffer: Holds the successes.
        pool: Successes collected beforehand, which the buffer of a new run starts with (DART, arXiv 2509.23866).
        remembers: Whether new successes are remembered, as in ARPO; otherwise what was collected beforehand stays.
    """

    def __init__(self, buffer: ReplayBuffer, *, pool: ExperiencePool | None = None, remembers: bool = True) -> None:
        if pool is None and not remembers:
            raise ConfigError("remembers=false leaves a buffer empty that has no pool: set pool, or remembers=true")
        self.buffer = buffer
        self.pool = pool
        self.remembers = remembers
        self._store: TrajectoryStore | None = None
        self._restored: dict[str, Any] | None = None

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if trainer.is_global_zero:
            self._store = runtime_of(trainer).store

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._store is None:
            return
        if self._restored is not None:
            self.buffer.load_state_dict(self._restored, self._store.get)
            self._restored = None
            log.info("the replay buffer holds %d trajectories again", len(self.buffer))
        elif self.pool is not None:
            buffer = self.buffer
            for group in self.pool.move_into(
                runtime_of(trainer), buffer.is_worth_replaying, most=buffer.capacity_per_task
            ):
                buffer.admit(group)

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        collected = list(batch.groups)
        batch.groups = [self._inject(group) for group in collected]
        if self.remembers:
            self.buffer.admit_all([*collected, *batch.leftovers])
        module.log_dict(self._metrics(batch), on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    def _inject(self, group: Group) -> Group:
        injected = self.buffer.inject(group)
        if injected is group:
            return group
        assert self._store is not None, "rollouts end on rank 0"
        trajectories = list(injected.trajectories)
        for position in injected.injected:
            trajectories[position] = self._store.load_screenshots(trajectories[position])
        return replace(injected, trajectories=tuple(trajectories))

    def _metrics(self, batch: RolloutBatch) -> dict[str, float]:
        replayed = [group.trajectories[position] for group in batch.groups for position in group.injected]
        ages = [batch.policy_version - trajectory.policy_version for trajectory in replayed]
        metrics = {f"replay/{name}": value for name, value in self.buffer.metrics(batch.policy_version).items()}
        metrics["replay/injected"] = float(len(replayed))
        if ages:
            metrics["replay/injected_age"] = sum(ages) / len(ages)
        return metrics

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict["buffer"]
