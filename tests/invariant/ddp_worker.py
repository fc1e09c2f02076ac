"""The same training on two forked processes and on one: `python -m tests.invariant.ddp_worker MODEL BATCHES OUT`."""

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
from arpo.modules.objective import Objective
from arpo.types import RolloutBatch

ESTIMATORS: tuple[Estimator, ...] = ("grpo", "pass_at_k")
"""The latter leaves one sample for two ranks."""


class OnRankZero(L.LightningDataModule):
    """Gives batches on rank 0 and empty ones elsewhere, as `RolloutDataModule` does."""

    def __init__(self, batches: list[RolloutBatch]) -> None:
        super().__init__()
        self.batches = batches

    def train_dataloader(self) -> DataLoader:
        (batch,) = self.batches[self.trainer.current_epoch : self.trainer.current_epoch + 1]
        empty = RolloutBatch(batch.iteration, batch.policy_version, [])
        return DataLoader([batch if self.trainer.global_rank == 0 else empty], batch_size=None)


class Result(L.Callback):
    """Writes what every rank has learned and logged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metrics: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        ratios = len(pl_module.last_update["ratio"])
        logged = trainer._results.metrics(on_step=False)["log"]  # of this iteration alone
        self.metrics.append({name: float(value) for name, value in logged.items()} | {"ratios": ratios})

    def on_train_end(self, trainer, pl_module) -> None:
        weights = {name: parameter.detach() for name, parameter in pl_module.policy.named_parameters()}
        result = {"weights": weights, "metrics": self.metrics, "version": pl_module.policy_version}
        torch.save(result, f"{self.path}.{trainer.global_rank}")


def train(model: str, batches: list[RolloutBatch], out: str, ranks: int, estimator: Estimator) -> None:
    module = GRPOModule(
        partial(Policy, model),
        partial(torch.optim.SGD, lr=0.5),
        Objective(estimator=estimator),
        minibatches=2,
        micro_batch_tokens=160,
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo", start_method="fork") if ranks > 1 else "auto",
        max_epochs=len(batches),
        reload_dataloaders_every_n_epochs=1,
        callbacks=[Result(f"{out}.{estimator}.{ranks}")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, OnRankZero(batches))


def main(model: str, batches: str, out: str) -> None:
    torch.set_num_threads(1)
    loaded: list[RolloutBatch] = pickle.loads(Path(batches).read_bytes())
    for ranks in (2, 1):  # a process that has computed gradients must not fork
        for estimator in ESTIMATORS:
            train(model, loaded, out, ranks, estimator)


if __name__ == "__main__":
    main(*sys.argv[1:])
