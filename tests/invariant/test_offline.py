"""Two processes learn offline what one learns: each computes a part of the same batches."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

from arpo.models.placement import full
from arpo.models.policy import LoraSettings, Policy
from arpo.modules.offline.base import OfflineModule
from arpo.modules.offline.dpo import DPOModule
from arpo.modules.offline.kto import KTOModule
from arpo.modules.sft import SFTModule
from arpo.types import Trajectory
from tests.invariant.ranks import on_ranks, quiet_trainer, strategy

WAYS = (("one", 1), ("ddp", 2), ("fsdp", 2))
CASES = {"sft": 6.0, "dpo": 0.69, "kto": 0.5, "lora": 0.69}
"""The loss below which something was learned."""
pytestmark = [pytest.mark.slow, pytest.mark.long]


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


def train_all(model: str, batches: list[list[Trajectory]], out: str, way: str, ranks: int) -> None:
    """Train every case, and write what each rank has learned and logged."""
    for case in CASES:
        torch.manual_seed(0)
        module = module_of(case, model)
        trainer = quiet_trainer(ranks, strategy(way), max_epochs=2)
        trainer.fit(module, DataLoader(batches, batch_size=None))
        weights = {name: full(parameter.detach()) for name, parameter in module.policy.named_parameters()}
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        torch.save({"weights": weights, "metrics": metrics}, f"{out}.{case}.{way}{ranks}.{trainer.global_rank}")


def train_each_way(model: str, batches: list[list[Trajectory]], out: str) -> None:
    for way, ranks in WAYS:
        on_ranks(ranks, train_all, model, batches, out, way, ranks)


@pytest.fixture(scope="module")
def trained(make_group, tiny_model, tmp_path_factory, forks):
    """The end of each rank of a way to train in a case; of three batches, one is a single pair."""
    directory = tmp_path_factory.mktemp("offline")
    groups = [make_group(1.0, 0.0, first=first) for first in (0, 2, 5, 8, 11)]
    pairs = [list(group.trajectories) for group in groups]
    batches = [pairs[0] + pairs[1], pairs[2], pairs[3] + pairs[4] + pairs[0]]
    forks.call(train_each_way, tiny_model, batches, directory / "out")
    ranks = dict(WAYS)
    return lambda case, way: [
        torch.load(directory / f"out.{case}.{way}{ranks[way]}.{rank}") for rank in range(ranks[way])
    ]


@pytest.mark.parametrize(("way", "ranks"), WAYS[1:])
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_end_with_the_weights_of_one_and_log_the_same(trained, case, way, ranks):
    (alone,), several = trained(case, "one"), trained(case, way)
    assert alone["metrics"]["train/loss"] < CASES[case]
    for result in several:
        assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-3, abs=1e-5)
        for name, weight in alone["weights"].items():
            assert_close(result["weights"][name], weight, rtol=0, atol=1e-5)
