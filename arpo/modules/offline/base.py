"""The base of what learns from trajectories that exist already."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Self

import torch
from jaxtyping import Float, Int64
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from pydantic import Field
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR
from typing_extensions import override

from arpo.bounds import AtLeastOne, Positive, Share, checked
from arpo.models.collate import micro_batches
from arpo.models.policy import ActionLogprobs, Policy
from arpo.models.tokenization import ChatTokenizer, TokenizedTrajectory, tokenize
from arpo.modules.base import MakeOptimizer, PolicyModule
from arpo.types import Trajectory

Ask = Callable[[Sequence[TokenizedTrajectory], Mapping[str, bytes]], ActionLogprobs]
"""The forward pass of a policy or of its reference."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """The training sequences of a batch of trajectories: one each, or with an image window one a step."""

    tokenized: tuple[TokenizedTrajectory, ...]
    owners: Int64[Tensor, " sequences"]
    """The place of each sequence's trajectory in the batch."""
    screenshots: Mapping[str, bytes]
    """PNG bytes by SHA-256."""
    trajectories: int

    @classmethod
    def of(cls, batch: Sequence[Trajectory], chat: ChatTokenizer) -> Self:
        """Return the sequences of a batch, trajectory by trajectory."""
        parts = [tokenize(trajectory, chat) for trajectory in batch]
        owners = [place for place, part in enumerate(parts) for _ in part]
        screenshots = {key: png for trajectory in batch for key, png in trajectory.screenshots.items()}
        return cls(tuple(chain.from_iterable(parts)), torch.tensor(owners), screenshots, len(batch))

    def pick(self, chunk: Sequence[int]) -> list[TokenizedTrajectory]:
        """Return the sequences of a micro-batch."""
        return [self.tokenized[index] for index in chunk]


@checked
class OfflineModule(PolicyModule):
    """A policy that learns from batches of trajectories, the same on every rank, which computes its micro-batches.

    Args:
        policy: See `PolicyModule`, as for all that are not below.
        steps: Optimizer steps of the run: the learning rate follows one cycle over them, up, at the top and down.
        warmup_fraction: Part of the steps in which the learning rate rises.
    """

    def __init__(
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        *,
        steps: Annotated[int, Field(ge=3)],
        warmup_fraction: Share = 0.1,
        micro_batch_tokens: AtLeastOne,
        max_grad_norm: Positive = 1.0,
        reference: Callable[..., Policy] | None = None,
    ) -> None:
        super().__init__(
            policy, optimizer, micro_batch_tokens=micro_batch_tokens, max_grad_norm=max_grad_norm, reference=reference
        )
        self.steps = steps
        self.warmup_fraction = warmup_fraction

    @torch.no_grad()
    def log_likelihoods(self, data: Sequences, ask: Ask) -> Float[Tensor, " trajectories"]:
        """Return Σ log π over the sampled tokens of each trajectory, the same on every rank."""
        found = torch.zeros(data.trajectories, device=self.device)
        for chunk, counts in self._share(data):
            totals = ask(data.pick(chunk), data.screenshots).logprobs.sum(1)  # 0 on padding
            found.index_add_(0, data.owners[chunk].to(self.device), totals * counts)
        return self._over_ranks(found)

    def descend(self, data: Sequences, loss: Callable[[ActionLogprobs, Sequence[int]], Tensor]) -> float:
        """Add the gradient of a loss that is a sum over sequences, and return its value.

        `loss` returns the part of a micro-batch, from its log-probabilities and the places of its sequences.
        """
        ranks = self.trainer.world_size
        total = torch.zeros((), device=self.device)
        for chunk, counts in self._share(data):
            part = loss(self.action_logprobs(data.pick(chunk), data.screenshots), chunk)
            self.manual_backward(part * (ranks * counts))  # gradients are averaged over the ranks
            total += part.detach() * counts
        return self._over_ranks(total).item()

    def _share(self, data: Sequences) -> list[tuple[list[int], int]]:
        """Return this rank's micro-batches, each with 1 if it counts, and 0 if it only keeps the ranks in step."""
        lengths = [len(tokens) for tokens in data.tokenized]
        ranks = self.trainer.world_size
        chunks = [(chunk, 1) for chunk in micro_batches(lengths, self.micro_batch_tokens)]
        shortest = lengths.index(min(lengths))
        chunks += [([shortest], 0)] * (-len(chunks) % ranks)
        return chunks[self.global_rank :: ranks]

    def _over_ranks(self, values: Tensor) -> Tensor:
        """Return the sum of all ranks' values."""
        if self.trainer.world_size == 1:
            return values
        summed: Tensor = self.trainer.strategy.reduce(values, reduce_op="sum")
        return summed

    def finish(self, metrics: Mapping[str, float], trajectories: int) -> None:
        """Take the optimizer's step with the gradient that was added up, and log it.

        A run of several iterations has a line each; one of a single iteration, as a warm start, has a line a step.
        """
        measured = {**metrics, "train/learning_rate": self.learning_rate}
        norm = self.take_step()
        schedule = self.lr_schedulers()
        assert isinstance(schedule, OneCycleLR), "configure_optimizers returns one schedule"
        schedule.step()  # a step that was refused takes its share of the cycle with it
        self.policy_version += 1
        measured |= {"train/refused_gradients": 1.0} if norm is None else {"train/grad_norm": norm}
        by_step = self.trainer.max_epochs == 1
        self.log_dict(measured, on_step=by_step, on_epoch=not by_step, prog_bar=True, batch_size=trajectories)

    @override
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # records, not tensors: Lightning would refuse frozen dataclasses

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.make_optimizer(self.named_trainable_parameters())
        peak = [group["lr"] for group in optimizer.param_groups]
        rise = max(self.warmup_fraction, 2 / self.steps)  # with one step, torch would divide by zero
        schedule = OneCycleLR(optimizer, peak, total_steps=self.steps, pct_start=rise, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": schedule}
