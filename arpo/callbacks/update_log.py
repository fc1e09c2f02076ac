"""The record of what every update did to the tokens it learned from."""

import lightning as L
from typing_extensions import override

from arpo.errors import check_at_least
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import runtime_of
from arpo.rollout.updates import forget_updates, write_update
from arpo.types import RolloutBatch


class UpdateLog(L.Callback):
    """A file an iteration in the trajectory store, `updates/iteration_<n>.safetensors`, for `python -m arpo view`.

    It holds the groups as they were learned from, with what replay put in, the advantage of each trajectory, and of
    each token log-probability and entropy before the update and in the forward that it was learned from: numbers that
    the update computes anyway. What the policy says of the tokens after the update would be known to nobody, so every
    few iterations one more forward asks it.

    Args:
        after_every_n_iterations: How often that is; the first iteration is always asked. 0 never asks.
    """

    def __init__(self, *, after_every_n_iterations: int = 10) -> None:
        check_at_least(0, after_every_n_iterations=after_every_n_iterations)
        self.after_every_n_iterations = after_every_n_iterations

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            forget_updates(runtime_of(trainer).store.root, trainer.current_epoch)

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        every, iteration = self.after_every_n_iterations, batch.iteration
        PolicyModule.of(pl_module).measures_after = bool(every and (iteration == 0 or (iteration + 1) % every == 0))

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        record = PolicyModule.of(pl_module).last_update
        if trainer.is_global_zero and record is not None:
            write_update(runtime_of(trainer).store.root, record)
