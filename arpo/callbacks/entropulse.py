"""Entropulse of ComputerRL (arXiv 2508.14040): imitation of the run's own successes, once its entropy has fallen."""

import logging
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import lightning as L
import numpy as np
from typing_extensions import override

from arpo.algorithms.losses import Aggregation, TokenLoss
from arpo.bounds import AtLeastOne, PositiveShare, checked
from arpo.callbacks.replay import BufferCallback
from arpo.errors import ConfigError
from arpo.methods.grpo import GRPO
from arpo.methods.method import Method, TokenTerms
from arpo.modules.grpo import GRPOModule
from arpo.replay import ReplayBuffer
from arpo.rollout.hooks import broadcast
from arpo.types import Group, RolloutBatch, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Imitation(GRPO):
    """The language-model loss of successes that are alone in their groups: -r log π, with no ratio to clip."""

    imitation: float = 1.0
    aggregation: Aggregation = "token"

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        return TokenLoss(-terms.advantages * terms.logprobs)


IMITATION = Imitation()


@checked
class Entropulse(BufferCallback):
    """One supervised phase in the middle of a run, which in the paper gives the policy its entropy back.

    It begins when the mean entropy of the last iterations' updates lies below a share of that of the run's first ones.
    For some iterations the update then learns from one success of every task that the run has solved, drawn by chance
    for diversity, in the place of what was collected, and by imitation in the place of the run's method. Then the run
    goes on as before. The paper names no numbers.

    It stands last in the list of callbacks, so that what they count and remember is what the policy did.

    Args:
        buffer: Holds the successes of the run.
        method: That of the run.
        share: Of the first iterations' entropy, below which the phase begins.
        window: Iterations over which entropies are averaged, the first of the run and the last.
        iterations: Length of the phase.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        method: Method,
        *,
        share: PositiveShare = 0.5,
        window: AtLeastOne = 4,
        iterations: AtLeastOne = 1,
    ) -> None:
        if method.needs.values:
            raise ConfigError(
                f"entropulse=on leaves the critic of {type(method).__name__} without a lesson: take entropulse=off, "
                "or a method without a critic"
            )
        super().__init__(buffer)
        self.share = share
        self.window = window
        self.iterations = iterations
        self._entropies: list[float] = []
        self._taken = 0
        self._usual: Method | None = None

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        if broadcast(self._is_due()):  # rank 0 knows; the loss of all ranks is by the same method
            module = _learner(pl_module)
            self._usual, module.objective = module.objective, IMITATION

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        imitated = []
        for success in () if self._usual is None else self.buffer.one_of_each():
            task = Task(success.task_id, success.instruction, success.domain)
            imitated.append(Group(task, (self.load_screenshots(success),), injected=(0,)))
        self.buffer.admit_all([*batch.groups, *batch.leftovers])
        if imitated:
            log.info("the entropy has fallen: this update imitates a success of each of %d tasks", len(imitated))
            for group in batch.groups:
                collected = tuple(each for at, each in enumerate(group.trajectories) if at not in group.injected)
                batch.leftovers = [*batch.leftovers, replace(group, trajectories=collected, injected=())]
            batch.groups = imitated
        metrics = {"entropulse/imitated": float(len(imitated))}
        module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        module = _learner(pl_module)
        if self._usual is not None:
            module.objective, self._usual = self._usual, None
            self._taken += 1
        elif module.last_update is not None:  # rank 0
            entropies = module.last_update.numbers.get("entropy", np.empty(0))
            known = entropies[~np.isnan(entropies)]
            self._entropies += [float(known.mean())] if known.size else []

    def _is_due(self) -> bool:
        """Return whether the next update belongs to the phase."""
        if self._taken >= self.iterations or not len(self.buffer):
            return False
        if self._taken or not self._entropies:
            return self._taken > 0
        return fmean(self._entropies[-self.window :]) < self.share * fmean(self._entropies[: self.window])

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"entropies": list(self._entropies), "taken": self._taken}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._entropies, self._taken = list(state_dict["entropies"]), state_dict["taken"]


def _learner(module: L.LightningModule) -> GRPOModule:
    if not isinstance(module, GRPOModule):
        raise ConfigError(f"entropulse=on needs a method that learns from rollouts, got {type(module).__name__}")
    return module
