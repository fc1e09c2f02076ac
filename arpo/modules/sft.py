"""Supervised warm start: imitate demonstrations before reinforcement learning."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from typing_extensions import override

from arpo.errors import ConfigError, check_at_least
from arpo.models.collate import micro_batches
from arpo.models.policy import Policy
from arpo.models.tokenization import tokenize
from arpo.modules.base import PolicyModule
from arpo.types import Trajectory


class SFTModule(PolicyModule):
    """A policy that learns to imitate: it minimises -log π of demonstrated responses, averaged over all their tokens.

    Args:
        policy: Builds the policy; called once, when Lightning asks for the model.
        optimizer: Builds the optimizer from the trainable parameters.
        steps: Optimizer steps of the run: the learning rate follows one cycle over them.
        warmup_fraction: Part of the steps in which the learning rate rises.
        micro_batch_tokens: Padded tokens of one forward; bounds memory, changes no result.
        max_grad_norm: Gradient norm above which the gradient is scaled down.
    """

    def __init__(
        self,
        policy: Callable[..., Policy],
        optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        steps: int,
        warmup_fraction: float = 0.1,
        micro_batch_tokens: int,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__(policy, optimizer, micro_batch_tokens=micro_batch_tokens, max_grad_norm=max_grad_norm)
        check_at_least(3, steps=steps)  # one up, one at the top, one down
        if not 0 <= warmup_fraction <= 1:
            raise ConfigError(f"warmup_fraction must lie in [0, 1], got {warmup_fraction}")
        self.steps = steps
        self.warmup_fraction = warmup_fraction

    @override
    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch  # records, not tensors: Lightning would refuse frozen dataclasses

    @override
    def training_step(self, batch: Sequence[Trajectory], batch_idx: int) -> None:
        tokenized = [tokens for trajectory in batch for tokens in tokenize(trajectory, self.policy.chat)]
        screenshots = {key: png for trajectory in batch for key, png in trajectory.screenshots.items()}
        total = sum(int(tokens.action_mask.sum()) for tokens in tokenized)
        loss = torch.zeros((), device=self.device)
        for chunk in micro_batches([len(tokens) for tokens in tokenized], self.micro_batch_tokens):
            output = self.action_logprobs([tokenized[index] for index in chunk], screenshots)
            share = -output.logprobs.sum() / total  # 0 on padding
            self.manual_backward(share)
            loss += share.detach()
        norm = self.take_step()
        measured = {"train/refused_gradients": 1.0} if norm is None else {"train/grad_norm": norm}
        self.log_dict(
            {"train/loss": loss.item()} | measured, on_step=True, on_epoch=False, prog_bar=True, batch_size=len(batch)
        )

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.make_optimizer(iter(self.trainable_parameters()))
        peak = [group["lr"] for group in optimizer.param_groups]
        rise = max(self.warmup_fraction, 2 / self.steps)  # with one step, torch would divide by zero
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, peak, total_steps=self.steps, pct_start=rise, cycle_momentum=False
        )
        return {"optimizer": optimizer, "lr_scheduler": schedule}
