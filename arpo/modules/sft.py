"""Imitation: the warm start before reinforcement learning, and rejection sampling on successes."""

from collections.abc import Callable, Sequence

from typing_extensions import override

from arpo.models.policy import Policy
from arpo.modules.offline.base import OfflineModule, Sequences
from arpo.modules.optimizer import MakeOptimizer
from arpo.types import Trajectory


class SFTModule(OfflineModule):
    """A policy that learns to imitate: it minimises -log π of responses that it is shown, averaged over all tokens.

    Args:
        policy: Builds the policy; called once, when Lightning asks for the model.
        optimizer: Builds the optimizer from the trainable parameters and their names.
        steps: Optimizer steps of the run: the learning rate follows one cycle over them.
        warmup_fraction: Part of the steps in which the learning rate rises.
        micro_batch_tokens: Padded tokens of one forward; bounds memory, changes no result.
        max_grad_norm: Gradient norm above which the gradient is scaled down.
    """

    def __init__(
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        *,
        steps: int,
        warmup_fraction: float = 0.1,
        micro_batch_tokens: int,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__(
            policy,
            optimizer,
            steps=steps,
            warmup_fraction=warmup_fraction,
            micro_batch_tokens=micro_batch_tokens,
            max_grad_norm=max_grad_norm,
        )

    @override
    def training_step(self, batch: Sequence[Trajectory], batch_idx: int) -> None:
        data = Sequences.of(batch, self.policy.chat)
        total = data.action_tokens
        loss = self.descend(data, lambda output, _: -output.logprobs.sum() / total)  # 0 on padding
        self.finish({"train/loss": loss}, len(batch))
