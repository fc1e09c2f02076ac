"""Two processes that warm start see the demonstrations that one sees, and one of them collects."""

import json
from functools import partial
from pathlib import Path

import lightning as L
import pytest
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
    how = {"max_steps": 4, "family": "qwen2_5_vl", "image_limits": (3136, 15680), "success_threshold": 0.5}
    data = DemonstrationDataModule(
        DemonstrationCollector(pool=pool, demonstrator=Demonstrator(), **how),
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


def read_each_way(out: Path) -> None:
    for way, ranks in (("one", 1), ("ddp", 2)):
        on_ranks(ranks, read, out, way, ranks)


@pytest.mark.long
@pytest.mark.slow
def test_two_ranks_see_the_demonstrations_of_one_which_are_collected_once(tmp_path, forks):
    forks.call(read_each_way, tmp_path)
    alone, *several = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one.0", "ddp.0", "ddp.1")]
    assert len(alone) == 12
    assert several == [alone, alone]
    for way in ("one", "ddp"):
        lines = (tmp_path / way / "demonstrations/demonstration/iteration_000000.jsonl").read_text().splitlines()
        assert len(lines) == 40
    assert (tmp_path / "ddp/model/tokenizer.json").read_bytes() == (tmp_path / "one/model/tokenizer.json").read_bytes()
