"""Offline learning on one process and on two: `python -m tests.invariant.offline MODEL BATCHES OUT CASE…`."""

import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from arpo.models.policy import LoraSettings, Policy
from arpo.models.sharding import full
from arpo.modules.offline.base import OfflineModule
from arpo.modules.offline.dpo import DPOModule
from arpo.modules.offline.kto import KTOModule
from arpo.modules.sft import SFTModule
from arpo.types import Trajectory
from tests.invariant.ranks import on_ranks, quiet_trainer, strategy

WAYS = (("one", 1), ("ddp", 2), ("fsdp", 2))
CASES = ("sft", "dpo", "kto", "lora")


def module_of(case: str, model: str) -> OfflineModule:
    """The module of a case; `lora` is DPO of an adapter."""
    adapter = {"lora": LoraSettings(rank=4, alpha=8.0), "train_vision": False} if case == "lora" else {}
    make: Callable[..., Policy] = partial(Policy, model, **adapter)
    optimizer = partial(torch.optim.AdamW, lr=3e-4)
    shared = {"steps": 6, "micro_batch_tokens": 160, "max_grad_norm": 1.0}
    match case:
        case "sft":
            return SFTModule(make, optimizer, **shared)
        case "kto":
            return KTOModule(make, optimizer, make, beta=0.5, **shared)
        case _:
            return DPOModule(make, optimizer, make, beta=0.5, **shared)


def train_all(
    model: str, batches: list[list[Trajectory]], out: str, way: str, ranks: int, cases: Sequence[str]
) -> None:
    """Train every one of these cases, and write what each rank has learned and logged."""
    for case in cases:
        torch.manual_seed(0)
        module = module_of(case, model)
        trainer = quiet_trainer(ranks, strategy(way), max_epochs=2)
        trainer.fit(module, DataLoader(batches, batch_size=None))
        weights = {name: full(parameter.detach()) for name, parameter in module.policy.named_parameters()}
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        torch.save({"weights": weights, "metrics": metrics}, f"{out}.{case}.{way}{ranks}.{trainer.global_rank}")


def main(model: str, batches: str, out: str, *cases: str) -> None:
    torch.set_num_threads(1)
    loaded: list[list[Trajectory]] = pickle.loads(Path(batches).read_bytes())
    for way, ranks in WAYS:
        on_ranks(ranks, train_all, model, loaded, out, way, ranks, cases)


if __name__ == "__main__":
    main(*sys.argv[1:])
