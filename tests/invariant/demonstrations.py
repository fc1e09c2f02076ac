"""Demonstrations on one process and on two: `python -m tests.invariant.demonstrations OUT`."""

import json
import sys
from functools import partial
from pathlib import Path

import lightning as L
import torch

from arpo.agent.prompt import Prompt
from arpo.datamodules.collecting import DemonstrationCollector
from arpo.datamodules.demonstrations import DemonstrationDataModule
from arpo.datamodules.demonstrator import Demonstrator
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.pool import EnvPool
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.types import Trajectory
from tests.invariant.ranks import on_ranks, quiet_trainer, strategy


class Reader(L.LightningModule):
    """Writes down which demonstrations it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[str]] = []

    def training_step(self, batch: list[Trajectory]) -> None:
        self.seen.append([trajectory.id for trajectory in batch])

    def transfer_batch_to_device(self, batch: list[Trajectory], *_: object) -> list[Trajectory]:
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.weight], lr=0.0)


def read(out: Path, way: str, ranks: int) -> None:
    """Collect, read and write what each rank has seen."""
    pool = EnvPool(FakeDesktop, size=2, backend="thread", reset_timeout_s=5.0)
    collector = DemonstrationCollector(pool, Demonstrator(), 4, "qwen2_5_vl", (3136, 15680), success_threshold=0.5)
    data = DemonstrationDataModule(
        collector,
        fake_tasks(20),
        out / way / "demonstrations",
        Prompt.compact(),
        partial(make_tiny, hidden=64, layers=1, words=600),
        out / way / "model",
        per_task=2,
        steps=12,
        batch_size=4,
        arrival=0.5,
    )
    trainer = quiet_trainer(ranks, strategy(way), max_epochs=1)
    module = Reader()
    trainer.fit(module, datamodule=data)
    (out / f"{way}.{trainer.global_rank}.json").write_text(json.dumps(module.seen))


def main(out: str) -> None:
    torch.set_num_threads(1)
    for way, ranks in (("one", 1), ("ddp", 2)):
        on_ranks(ranks, read, Path(out), way, ranks)


if __name__ == "__main__":
    main(*sys.argv[1:])
