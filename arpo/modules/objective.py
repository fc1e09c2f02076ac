"""What an update maximises: every choice between published variants in one place, checked before anything starts."""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from arpo.algorithms.advantages import Deviation, Estimator, group_advantages
from arpo.algorithms.corrections import truncated_importance_weights
from arpo.algorithms.kl import KLEstimator, kl_divergence
from arpo.algorithms.losses import Aggregation, ClipRange, LossOutput, MinibatchAverage, RatioLevel, policy_loss
from arpo.algorithms.rewards import group_rewards
from arpo.errors import ConfigError
from arpo.models.policy import ActionLogprobs
from arpo.modules.minibatch import Minibatch
from arpo.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """From rewards to advantages, and from log-probabilities to a loss; `GRPOModule` says what each number is."""

    clip: ClipRange
    format_weight: float
    estimator: Estimator
    std: Deviation
    level: RatioLevel
    aggregation: Aggregation
    dr_grpo_length: int | None
    sampler_correction: float | None
    kl_coefficient: float
    kl: KLEstimator

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("estimator", self.estimator, get_args(Estimator)),
            ("std", self.std, get_args(Deviation)),
            ("level", self.level, get_args(RatioLevel)),
            ("aggregation", self.aggregation, get_args(Aggregation)),
            ("kl", self.kl, get_args(KLEstimator)),
        ):
            if value not in allowed:
                raise ConfigError(f"module.{name} must be one of {', '.join(allowed)}, got {value!r}")
        if (self.aggregation == "dr_grpo") != (self.dr_grpo_length is not None):
            raise ConfigError(
                f"module.dr_grpo_length={self.dr_grpo_length} with module.aggregation={self.aggregation}: the length "
                "belongs to aggregation=dr_grpo, which needs it, and to no other"
            )
        if self.sampler_correction is not None and self.sampler_correction <= 0:
            raise ConfigError(
                f"module.sampler_correction must be positive, or null for none, got {self.sampler_correction}"
            )
        if self.format_weight < 0 or self.kl_coefficient < 0:
            raise ConfigError(
                "module.format_weight and module.kl_coefficient must not be negative, got "
                f"{self.format_weight} and {self.kl_coefficient}"
            )

    def advantages(self, group: Group) -> list[float]:
        """Give one advantage a trajectory of the group."""
        rewards = group_rewards(group, format_weight=self.format_weight)
        return group_advantages(rewards, estimator=self.estimator, std=self.std).tolist()

    def average(self, minibatch: Minibatch, ranks: int) -> MinibatchAverage:
        """Give the average over the tokens of a minibatch that `ranks` ranks share: they average their gradients."""
        return MinibatchAverage(
            self.aggregation,
            sequences=minibatch.sequences / ranks,
            tokens=minibatch.action_tokens / ranks,
            length=self.dr_grpo_length,
        )

    def weights(self, before: Tensor, sampler: Tensor, mask: Tensor, replayed: Tensor) -> Tensor | None:
        """Give the weight of each token for what its sampler was off the policy; None where nothing is corrected.

        A replayed success counts in full: it is there because the policy would hardly sample it.

        Args:
            before: Log-probabilities of the policy before the update.
            sampler: Log-probabilities of the engine at generation.
            mask: True on action tokens.
            replayed: True for sequences that replay put in.
        """
        if self.sampler_correction is None:
            return None
        weights = truncated_importance_weights(before, sampler, mask, cap=self.sampler_correction)
        return torch.where(replayed[:, None], mask.to(weights.dtype), weights)

    def loss(
        self,
        output: ActionLogprobs,
        before: Tensor,
        advantages: Tensor,
        mask: Tensor,
        average: MinibatchAverage,
        weights: Tensor | None = None,
    ) -> LossOutput:
        """Give the clipped loss of a micro-batch."""
        return policy_loss(
            output.logprobs,
            before,
            advantages,
            mask,
            average=average,
            clip=self.clip,
            level=self.level,
            weights=weights,
        )

    def kl_penalty(
        self, output: ActionLogprobs, reference: ActionLogprobs, mask: Tensor, average: MinibatchAverage
    ) -> Tensor:
        """Give the divergence of a micro-batch from the reference, without its coefficient."""
        return average(kl_divergence(output.logprobs, reference.logprobs, estimator=self.kl), mask)
