"""The same training on one process and on several.

Every variant runs in processes that are forked from this one, which has imported everything and computed nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch.utils.data import DataLoader

from arpo.callbacks.checkpoint import IterationCheckpoint
from arpo.callbacks.entropulse import Entropulse
from arpo.callbacks.replay import ReplayInjection
from arpo.methods.c3po import C3PO
from arpo.methods.digirl import DigiRL
from arpo.methods.distillation import Distillation
from arpo.methods.grpo import GRPO
from arpo.methods.ppo import PPO
from arpo.models.placement import full
from arpo.models.policy import LoraSettings, Policy
from arpo.models.tokenization import ChatTokenizer
from arpo.modules.grpo import GRPOModule
from arpo.modules.strategy import ShardedStrategy
from arpo.replay import ReplayBuffer
from arpo.types import RolloutBatch, Trajectory
from tests.exchanges import windowed
from tests.invariant.processes import on_ranks
from tests.modules.conftest import quiet_trainer as quiet

SHARED = {"minibatches": 2, "micro_batch_tokens": 160}
CASES: dict[str, dict[str, Any]] = {
    "arpo": {"objective": {"kl_coefficient": 0.1}, "reference": True},
    "scarce": {
        "objective": {"estimator": "pass_at_k"},
        "policy": {"gradient_checkpointing": True, "train_vision": False},
    },
    "lora": {
        "objective": {"kl_coefficient": 0.1},
        "reference": True,
        "policy": {"lora": LoraSettings(rank=4, alpha=8.0), "train_vision": False},
    },
    "dart": {"objective": {"estimator": "step_grpo", "correction": "tis_token", "high_entropy_steps": 0.8}},
    "twice": {"objective": {"correction": "tis_token"}, "module": {"epochs": 2}},
    "windowed": {"objective": {"estimator": "step_grpo", "high_entropy_steps": 0.4}, "image_window": 1},
    "episodes": {"objective": {"aggregation": "episode", "high_entropy_steps": 0.4}, "image_window": 1},
    "budget": {"method": C3PO, "objective": {"budget": 200, "over": "truncate"}, "image_window": 1},
    "pulse": {"objective": {}, "pulse": True},
    "critic": {
        "method": PPO,
        "objective": {"kl_coefficient": 0.1, "high_entropy_steps": 0.4},
        "reference": True,
        "module": {"epochs": 2},
        "ways": ("ddp",),
    },
    "taught": {
        "method": Distillation,
        "objective": {"reward_weight": 1.0, "kl_coefficient": 0.1, "entropy_coefficient": 0.01},
        "reference": True,
        "teacher": True,
        "module": {"epochs": 2},
    },
    "warmup": {
        "method": DigiRL,
        "objective": {"kept": 0.5},
        "module": {"critic_warmup": 2},
        "image_window": 1,
        "ways": ("ddp",),
    },
}
"""What is trained, by name, with GRPO unless another method is named. `pass_at_k` leaves one sample for several ranks;
`dart` compares steps of all ranks, of which `windowed` leaves so many out that a rank may have none; `twice` deals a
sample to another rank in each pass; `budget` leaves out trajectories and the last steps of one; `pulse` imitates
successes in its second iteration, by another method on every rank; `taught` has a teacher, a reference and an
entropy bonus; `critic` and `warmup` have a critic, which is not cut into shards, and in `warmup` it learns alone at
first."""


def ways(case: str) -> Sequence[str]:
    return CASES[case].get("ways", ("ddp", "fsdp"))


def strategy(way: str) -> Strategy | str:
    if way == "one":
        return "auto"
    timeout = timedelta(seconds=60)
    return ShardedStrategy(timeout) if way == "fsdp" else DDPStrategy(process_group_backend="gloo", timeout=timeout)


def quiet_trainer(ranks: int, strategy: Strategy | str, **options: Any) -> L.Trainer:
    """A trainer on so many processors that writes and shows nothing, unless `options` say so."""
    return quiet(devices=ranks, strategy=strategy, use_distributed_sampler=False, **options)


class Store:
    """Gives replayed trajectories their screenshots back, as the trajectory store does."""

    def __init__(self, batches: list[RolloutBatch]) -> None:
        groups = [group for batch in batches for group in batch.groups]
        self.successes = {t.id: t for group in groups for t in group.trajectories if t.task_reward == 1.0}
        self.screenshots = {k: png for group in groups for t in group.trajectories for k, png in t.screenshots.items()}

    def get(self, identity: str) -> Trajectory:
        return self.successes[identity]

    def load_screenshots(self, trajectory: Trajectory) -> Trajectory:
        shown = {step.screenshot: self.screenshots[step.screenshot] for step in trajectory.steps}
        return replace(trajectory, screenshots=shown)


class OnRankZero(L.LightningDataModule):
    """Gives batches on rank 0 and empty ones elsewhere, as `RolloutDataModule` does."""

    def __init__(self, batches: list[RolloutBatch]) -> None:
        super().__init__()
        self.batches = batches
        self.runtime = SimpleNamespace(store=Store(batches), engine=SimpleNamespace(weights=dict), run=dict)

    def train_dataloader(self) -> DataLoader:
        (batch,) = self.batches[self.trainer.current_epoch : self.trainer.current_epoch + 1]
        empty = RolloutBatch(batch.iteration, batch.policy_version, [])
        return DataLoader([batch if self.trainer.global_rank == 0 else empty], batch_size=None)


class Result(L.Callback):
    """Writes what every rank has learned and logged."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metrics: list[dict[str, float]] = []
        self.tokens: list[dict[str, torch.Tensor]] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        pl_module.measures_after = batch.iteration != 1

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        logged = trainer._results.metrics(on_step=False)["log"]  # of this iteration alone
        self.metrics.append({name: float(value) for name, value in logged.items()})
        record = pl_module.last_update  # of rank 0 alone
        numbers = {} if record is None else record.numbers
        self.tokens.append({name: torch.from_numpy(values) for name, values in numbers.items()})

    def on_train_end(self, trainer, pl_module) -> None:
        critic = {} if pl_module.critic is None else {f"critic.{n}": p for n, p in pl_module.critic.named_parameters()}
        learned = {**dict(pl_module.policy.named_parameters()), **critic}
        weights = {name: full(parameter.detach()) for name, parameter in learned.items()}
        result = {"weights": weights, "metrics": self.metrics, "tokens": self.tokens}
        torch.save(result | {"version": pl_module.policy_version}, f"{self.path}.{trainer.global_rank}")


def train(
    model: str,
    batches: list[RolloutBatch],
    out: str,
    way: str,
    ranks: int,
    case: str,
    *,
    resume: Path | None = None,
    extra: Sequence[L.Callback] = (),
    how: Callable[[str], Strategy | str] = strategy,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> None:
    """Train on all batches, or on those after the checkpoint to resume from; the result goes to `out`."""
    torch.manual_seed(0)
    options = CASES[case]
    make = partial(Policy, model, **options.get("policy", {}))
    module = GRPOModule(
        make,
        partial(optimizer, lr=3e-5, eps=1e-4),  # a gradient of rounding alone must not become a whole step
        options.get("method", GRPO)(**options["objective"]),
        reference=make if options.get("reference") else None,
        teacher=partial(Policy, model) if options.get("teacher") else None,
        **SHARED | options.get("module", {}),
    )
    trainer = quiet_trainer(
        ranks,
        how(way),
        max_epochs=len(batches),
        reload_dataloaders_every_n_epochs=1,
        callbacks=[ReplayInjection(ReplayBuffer()), Result(f"{out}.{case}.{way}{ranks}"), *pulses(options), *extra],
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in extra),
    )
    chat = ChatTokenizer(model)
    shown = [_shown_with(batch, chat, options.get("image_window")) for batch in batches]
    trainer.fit(module, OnRankZero(shown), ckpt_path=resume)


def train_saving(
    model: str,
    batches: list[RolloutBatch],
    folder: Path,
    way: str,
    ranks: int,
    case: str,
    resume: Path | None,
    **how: Any,
) -> None:
    """Train with a checkpoint after every iteration, from the beginning or from a checkpoint."""
    extra = [*how.pop("extra", ()), IterationCheckpoint(folder, every_n_iterations=1, keep=9)]
    train(model, batches, str(folder), way, ranks, case, resume=resume, extra=extra, **how)


def pulses(options: dict[str, Any]) -> list[L.Callback]:
    """The supervised phase of a case that has one, of a run whose entropy was once far higher."""
    if "pulse" not in options:
        return []
    callback = Entropulse(ReplayBuffer(), GRPO(), window=1)
    callback.load_state_dict({"buffer": ReplayBuffer().state_dict(), "entropies": [1e9], "taken": 0})
    return [callback]


def _shown_with(batch: RolloutBatch, chat: ChatTokenizer, image_window: int | None) -> RolloutBatch:
    """The batch as if the policy had seen so many screenshots at once."""
    groups = [
        replace(group, trajectories=tuple(windowed(each, chat, image_window) for each in group.trajectories))
        for group in batch.groups
    ]
    return replace(batch, groups=groups)


def train_each_way(model: str, batches: list[RolloutBatch], out: str, case: str, several: int) -> None:
    """Train a case on one rank, and on several in each way."""
    for way, ranks in (("one", 1), *((way, several) for way in ways(case))):
        on_ranks(ranks, train, model, batches, out, way, ranks, case)
