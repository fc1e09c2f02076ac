"""Learning from judged trajectories: any loss of their log-likelihood against that of the start policy."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.errors import check_positive
from arpo.models.policy import ActionLogprobs, Policy
from arpo.modules.offline.base import OfflineModule, Sequences
from arpo.modules.optimizer import MakeOptimizer
from arpo.types import Trajectory


class PreferenceModule(OfflineModule):
    """A policy that learns which trajectories to make more likely than they were before the run, and which less.

    The losses are not sums over tokens, so a micro-batch has no loss of its own. They depend on a trajectory by one
    number, its log-ratio r = log π(y|x) - log π_ref(y|x): first all r of a batch are computed, without gradient; then
    the gradient of the loss is that of Σ (∂L/∂r) · log π(y|x), which any micro-batches add up to.

    Args:
        policy: Builds the policy; called once, when Lightning asks for the model.
        optimizer: Builds the optimizer from the trainable parameters and their names.
        reference: Builds the policy that the run starts from, frozen. With LoRA nothing is built: the reference is the
            policy without its adapters.
        beta: Weight of the log-ratio in the loss: the larger, the closer to the reference.
        steps: Optimizer steps of the run: the learning rate follows one cycle over them.
        warmup_fraction: Part of the steps in which the learning rate rises.
        micro_batch_tokens: Padded tokens of one forward; bounds memory, changes no result.
        max_grad_norm: Gradient norm above which the gradient is scaled down.

    Raises:
        ConfigError: When a number is out of its range.
    """

    def __init__(
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        reference: Callable[..., Policy],
        *,
        beta: float,
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
            reference=reference,
        )
        check_positive(beta=beta)
        self.beta = beta

    @abstractmethod
    def judge(
        self, log_ratios: Float[Tensor, " batch"], batch: Sequence[Trajectory]
    ) -> tuple[Float[Tensor, ""], Mapping[str, float]]:
        """Return the loss of a batch, differentiable in its log-ratios, and what to log beside.

        Raises:
            ConfigError: When the batch is not made for this loss.
        """

    @override
    def training_step(self, batch: Sequence[Trajectory], batch_idx: int) -> None:
        data = Sequences.of(batch, self.policy.chat)
        log_ratios = self.log_ratios(data).requires_grad_()
        loss, metrics = self.judge(log_ratios, batch)
        (weights,) = torch.autograd.grad(loss, log_ratios)
        by_sequence = weights[data.owners.to(self.device)]

        def weighted(output: ActionLogprobs, chunk: Sequence[int]) -> Tensor:
            return torch.dot(by_sequence[chunk], output.logprobs.sum(1))  # 0 on padding

        self.descend(data, weighted)
        self.finish({**metrics, "train/loss": loss.item()}, len(batch))

    def log_ratios(self, data: Sequences) -> Float[Tensor, " trajectories"]:
        """Return log π(y|x) - log π_ref(y|x) of each trajectory, summed over its tokens, without gradient."""
        return self.log_likelihoods(data, self.action_logprobs) - self.log_likelihoods(data, self.reference_logprobs)

    def rewards(self, log_ratios: Tensor, good: Tensor) -> dict[str, float]:
        """Return the mean implicit reward β r of good trajectories and of the others, where there are any."""
        rewards = self.beta * log_ratios.detach()
        sides = {"train/reward_good": rewards[good], "train/reward_bad": rewards[~good]}
        return {name: side.mean().item() for name, side in sides.items() if len(side)}
