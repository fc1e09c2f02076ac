"""The way of every new policy to the engine, and the bound on how far the engine may be from the trainer."""

import time
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from arpo.bounds import Positive, checked
from arpo.errors import WeightSyncError
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback, attempt, raise_everywhere, runtime_of
from arpo.types import RolloutBatch

GAP = "engine/logprob_gap_mean"
GROWTH = 5.0
"""How many times as large as the run's first gap a later one may be."""
LEAST_GAPS = {torch.float32: 3e-6, torch.bfloat16: 4e-3}
"""The first gap counts as this much at least, by the format: that of tokens nearly certain is near 0."""
LARGEST_GAPS = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""The bound of the first gap itself, and of all where `tolerance` is not given: a first one may be wrong as well."""


@checked
class WeightSync(RolloutCallback):
    """A callback that sends the policy to the engine before the first iteration and after each.

    Each engine compares the checksum of the weights that it holds then with that of what it was sent
    (`arpo.inference.pump`), a replica of a fleet before it serves them; its caches answer for one policy version
    only. What neither sees, such as another precision, shows in the log-probabilities of the rollouts: where rollouts
    and updates take turns, engine and trainer computed them with the same weights, so their mean gap must stay about
    as large as it was in the run's first iteration.

    Where engine and trainer share their GPUs, the engine sleeps from the end of a rollout to the next sync: it frees
    its memory before the update begins, and takes it back, weights first, after the trainer has freed what it can.
    So it does where the policy is views of its weights: no answer sees half an update, and the sync moves none.

    Args:
        tolerance: Largest mean gap of log-probabilities that is accepted, in nats; None is five times the first one,
            which counts as `LEAST_GAPS` at least, and `LARGEST_GAPS` at most.
        colocated: Whether engine and trainer share their GPUs; rollouts cannot go on during an update then
            (`max_policy_lag` must be 0).
    """

    def __init__(self, *, tolerance: Positive | None = None, colocated: bool = False) -> None:
        self.tolerance = tolerance
        self.colocated = colocated
        self._first_gap: float | None = None
        self._asleep = False

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"first_gap": self._first_gap}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._first_gap = state_dict.get("first_gap")

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._first_gap = None  # of a fit before; a checkpoint that is resumed is read after this
        self._asleep = False

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: object, batch_idx: int
    ) -> None:
        if not isinstance(batch, RolloutBatch) and trainer.is_global_zero:
            self._let_sleep(trainer, pl_module)

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        self._let_sleep(trainer, module)  # behind callbacks that ask the engine about the rollout

    def _let_sleep(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if not self._asleep and (self.colocated or PolicyModule.of(module).policy.shares_trained):
            runtime = runtime_of(trainer)
            runtime.run(runtime.engine.sleep())
            self._asleep = True  # for all updates of an iteration

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._sync(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        if not trainer.is_last_batch:  # offline, an iteration has several, and the engine is idle in between
            return
        started = time.monotonic()
        self._sync(trainer, pl_module)
        metrics = {"time/sync": time.monotonic() - started}
        error = PolicyModule.of(pl_module).policy.update_error()
        if error is not None:
            metrics["engine/update_error"] = error
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        gap = trainer.callback_metrics.get(GAP)  # of all ranks, and the same on each
        # Without a lag the policy that was updated is the one that rolled out: nothing but noise is between them.
        if gap is not None and runtime_of(trainer).settings.max_policy_lag == 0:
            self._check(float(gap), PolicyModule.of(pl_module).policy.dtype)

    def _check(self, gap: float, dtype: torch.dtype) -> None:
        """Stop the run if the engine is farther from the trainer than it was."""
        if self._first_gap is None:
            self._first_gap = gap
        bound = self.tolerance or min(GROWTH * max(self._first_gap, LEAST_GAPS[dtype]), LARGEST_GAPS[dtype])
        if not gap <= bound:  # a NaN is not above anything either
            raise WeightSyncError(
                f"the engine's log-probabilities differ from the trainer's by {gap:.2g} in the mean of a rollout, and "
                f"by {self._first_gap:.2g} in the run's first; allowed is {bound:.2g}. The engine serves other "
                "weights, kept a prefix, multimodal or encoder cache, or computes in another precision: use the same "
                "dtype on both sides; between bfloat16 implementations about 0.012 is normal. Where the gap is sound, "
                "callbacks.weight_sync.tolerance allows more"
            )

    def _sync(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Update the engine; on every rank, because all gather the weights together."""
        module = PolicyModule.of(pl_module)
        if self.colocated:  # before rank 0 wakes the engines of all the GPUs
            torch.cuda.empty_cache()
            trainer.strategy.barrier()
        if module.policy.shares_trained and torch.cuda.is_available():
            torch.cuda.synchronize()  # the engine reads in a stream of its own
        tensors = module.policy.checkpoint_tensors()
        error: Exception | None = None
        if trainer.is_global_zero:
            runtime = runtime_of(trainer)
            _, error = attempt(lambda: runtime.update_weights(tensors, module.policy_version))
        _read_to_the_end(tensors, error)
        raise_everywhere(error)
        self._asleep = False


def _read_to_the_end(tensors: Iterator[tuple[str, Tensor]], error: Exception | None) -> None:
    """Read what an engine has not read that failed: the other ranks wait in the middle of the gathering."""
    try:
        for _ in tensors:
            pass
    except Exception as broken:
        if error is None:
            raise
        raise error from broken
