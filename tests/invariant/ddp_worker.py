"""One rank of a training on several processes.

python -m tests.invariant.ddp_worker MODEL BATCHES OUT RANKS ESTIMATOR
"""

import pickle
import sys
from functools import partial
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from arpo.algorithms.advantages import Estimator
from arpo.models.policy import Policy
from arpo.modules.grpo import GRPOModule
from arpo.types import RolloutBatch


class OnRankZero(L.LightningDataModule):
    """Gives batches on rank 0 and empty ones elsewhere, as `RolloutDataModule` does."""

    def __init__(self, batches: list[RolloutBatch]) -> None:
        super().__init__()
        self.batches = batches

    def train_dataloader(self) -> DataLoader:
        empty = self.trainer.global_rank != 0
        given = [RolloutBatch(b.iteration, b.policy_version, []) if empty else b for b in self.batches]
        return DataLoader(given, batch_size=None)


class Metrics(L.Callback):
    """Keeps what every iteration logged."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def main(model: str, batches: str, out: str, ranks: int, estimator: Estimator) -> None:
    torch.set_num_threads(1)
    module = GRPOModule(
        partial(Policy, model),
        partial(torch.optim.SGD, lr=0.5),
        estimator=estimator,
        minibatches=2,
        micro_batch_tokens=160,
    )
    metrics = Metrics()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto",
        max_epochs=1,
        callbacks=[metrics],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, OnRankZero(pickle.loads(Path(batches).read_bytes())))
    weights = {name: parameter.detach() for name, parameter in module.policy.named_parameters()}
    rank = trainer.global_rank
    torch.save({"weights": weights, "metrics": metrics.seen, "version": module.policy_version}, f"{out}.{rank}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
