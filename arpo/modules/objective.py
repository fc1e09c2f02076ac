"""The objective of an update: every choice between published variants in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from arpo.algorithms.advantages import Deviation, Estimator, group_advantages
from arpo.algorithms.corrections import Correction, CorrectionName, CorrectionWeights
from arpo.algorithms.kl import KLEstimator, kl_divergence
from arpo.algorithms.losses import Aggregation, ClipRange, MinibatchAverage, RatioLevel, TokenLoss, policy_loss
from arpo.algorithms.rewards import group_rewards
from arpo.errors import ConfigError, check_at_least, check_one_of
from arpo.models.policy import ActionLogprobs
from arpo.modules.minibatch import Minibatch
from arpo.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The way from rewards to advantages, and from log-probabilities to a loss.

    Args:
        format_weight: Weight of the format reward in the reward; 1.0 in the paper, 0.5 in its code.
        estimator: How rewards of a group become advantages.
        std: Standard deviation of the group: `population` as in the paper, `sample` as in its code.
        imitation: Times the task reward, is added to every advantage, so that a success is imitated even where its
            whole group succeeds: at a ratio of 1 the gradient is that of the language-model loss on positive
            examples (arXiv 2504.05118, section 4.3). The paper has none.
        clip_low: The ratio is clipped below at 1 - `clip_low`.
        clip_high: The ratio is clipped above at 1 + `clip_high`.
        dual_clip: Bound on the loss of a negative advantage, as a multiple of it; None is off, as in the paper.
        level: Ratio per `token`, or per `sequence` (GSPO, arXiv 2507.18071).
        aggregation: How token losses become one number.
        dr_grpo_length: The constant length of the aggregation `dr_grpo`, and of no other.
        correction: Weights for how far the engine that sampled was from the policy that learns, for
            `max_policy_lag` > 0; the names are those of `arpo.algorithms.corrections.PUBLISHED`, or `none`.
        correction_band: Bounds [low, high] of the ratio, where they differ from those that the correction has.
        high_entropy_steps: Share of a group's steps to train, those in which the policy was most undecided (0.8 in
            DART, arXiv 2509.23866); None trains all.
        kl_coefficient: Weight of the KL term; the paper has none.
        kl: Estimator of the KL term.

    Raises:
        ConfigError: When a value is not one of those above, or two of them contradict each other.
        ValueError: When the clips make no range.
    """

    format_weight: float = 1.0
    estimator: Estimator = "grpo"
    std: Deviation = "population"
    imitation: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.3
    dual_clip: float | None = None
    level: RatioLevel = "token"
    aggregation: Aggregation = "sequence"
    dr_grpo_length: int | None = None
    correction: CorrectionName = "none"
    correction_band: Sequence[float] | None = None
    high_entropy_steps: float | None = None
    kl_coefficient: float = 0.0
    kl: KLEstimator = "k3"
    clip: ClipRange = field(init=False, repr=False)
    rule: Correction | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_one_of(Estimator, estimator=self.estimator)
        check_one_of(Deviation, std=self.std)
        check_one_of(RatioLevel, level=self.level)
        check_one_of(Aggregation, aggregation=self.aggregation)
        check_one_of(KLEstimator, kl=self.kl)
        if (self.aggregation == "dr_grpo") != (self.dr_grpo_length is not None):
            raise ConfigError(
                f"dr_grpo_length={self.dr_grpo_length} with aggregation={self.aggregation}: the length belongs to "
                "aggregation=dr_grpo, which needs it, and to no other"
            )
        if self.dr_grpo_length is not None:
            check_at_least(1, dr_grpo_length=self.dr_grpo_length)
        if self.high_entropy_steps is not None and not 0 < self.high_entropy_steps <= 1:
            raise ConfigError(
                f"high_entropy_steps must lie in (0, 1], got {self.high_entropy_steps}; null trains every step"
            )
        check_at_least(
            0, format_weight=self.format_weight, kl_coefficient=self.kl_coefficient, imitation=self.imitation
        )
        object.__setattr__(self, "clip", ClipRange(low=self.clip_low, high=self.clip_high, dual=self.dual_clip))
        object.__setattr__(self, "rule", Correction.named(self.correction, self.correction_band))

    def advantages(self, group: Group) -> list[float]:
        """Return one advantage a trajectory of the group."""
        rewards = group_rewards(group, format_weight=self.format_weight)
        steps = torch.tensor([len(trajectory.steps) for trajectory in group.trajectories])
        relative = group_advantages(rewards, estimator=self.estimator, std=self.std, steps=steps)
        tasks = torch.tensor([trajectory.task_reward for trajectory in group.trajectories])
        return (relative + self.imitation * tasks).tolist()

    def average(self, minibatch: Minibatch, ranks: int) -> MinibatchAverage:
        """Return the average over the tokens of a minibatch that `ranks` ranks share: they average their gradients."""
        return MinibatchAverage(
            self.aggregation,
            sequences=minibatch.sequences / ranks,
            tokens=minibatch.action_tokens / ranks,
            length=self.dr_grpo_length,
        )

    def weights(self, before: Tensor, sampler: Tensor, mask: Tensor, replayed: Tensor) -> CorrectionWeights | None:
        """Return the weight of each token for how far its sampler was off-policy; None where nothing is corrected.

        A replayed success counts in full: it is there because the policy would hardly sample it.

        Args:
            before: Log-probabilities of the policy before the update, [batch, actions].
            sampler: Log-probabilities of the engine at generation, [batch, actions].
            mask: True on action tokens, [batch, actions].
            replayed: True for sequences that replay put in, [batch].
        """
        if self.rule is None:
            return None
        found = self.rule.weights(before, sampler, mask)
        spared = replayed[:, None]
        return CorrectionWeights(torch.where(spared, mask.to(found.weights.dtype), found.weights), found.cut & ~spared)

    def loss(
        self,
        output: ActionLogprobs,
        before: Tensor,
        advantages: Tensor,
        mask: Tensor,
        weights: Tensor | None = None,
    ) -> TokenLoss:
        """Return the clipped loss of each token of a micro-batch."""
        return policy_loss(
            output.logprobs, before, advantages, mask, clip=self.clip, level=self.level, weights=weights
        )

    def kl_penalty(
        self,
        output: ActionLogprobs,
        reference: ActionLogprobs,
        mask: Tensor,
        average: MinibatchAverage,
        selected: Tensor | None = None,
    ) -> Tensor:
        """Return the divergence of a micro-batch from the reference, without its coefficient.

        Args:
            output: Of the policy.
            reference: Of the reference.
            mask: True on action tokens, [batch, actions].
            average: Counts of the whole minibatch.
            selected: 1 where a token is trained, else 0, [batch, actions]; None where all are.
        """
        divergence = kl_divergence(output.logprobs, reference.logprobs, estimator=self.kl)
        return average(divergence if selected is None else divergence * selected, mask)
