"""The frame of every method that learns from rollouts, and the choices that all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arpo.algorithms.corrections import Correction, CorrectionName, CorrectionWeights
from arpo.algorithms.kl import KLEstimator, kl_divergence
from arpo.algorithms.losses import Aggregation, ClipRange, MinibatchAverage, RatioLevel, TokenLoss, policy_loss
from arpo.algorithms.rewards import trajectory_reward
from arpo.errors import ConfigError, check_at_least, check_one_of
from arpo.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Credit:
    """The lesson for each sampled token of a trajectory, step after step."""

    advantages: Float[Tensor, " tokens"]
    """How much better each was than what could be expected."""
    returns: Float[Tensor, " tokens"] | None = None
    """What a critic should have said before each; None without a critic."""

    @classmethod
    def of_steps(cls, trajectory: Trajectory, advantages: Float[Tensor, " steps"]) -> "Credit":
        """Return the credit of a trajectory in which every token has the advantage of its step."""
        lengths = torch.tensor([len(step.response_ids) for step in trajectory.steps])
        return cls(advantages.repeat_interleave(lengths))

    @classmethod
    def of_trajectory(cls, trajectory: Trajectory, advantage: float) -> "Credit":
        """Return the credit of a trajectory in which every token has the same advantage."""
        return cls(torch.full((trajectory.action_tokens,), advantage))


@dataclass(frozen=True, slots=True)
class Needs:
    """The numbers that a method asks for beside rewards, and beside the log-probabilities of its own loss."""

    values: bool = False
    """Of a critic, for `credits`, and with gradient for `loss`."""
    logprobs: bool = False
    """Of the policy before the update, for `credits`."""
    teacher: bool = False
    """The log-probabilities of another policy, for both."""
    reference: bool = False
    """Those of the policy that the run began with, for `loss`, and for `credits` with any of the above."""
    entropy: bool = False
    """The policy's, with gradient, for `loss`."""
    step_rewards: bool = False
    """Of the environment: without them it learns nothing."""

    @property
    def scores(self) -> bool:
        """Whether `credits` waits for a forward over the batch."""
        return self.values or self.logprobs or self.teacher


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The scores of each sampled token of a trajectory before the update; None where no need asks for them."""

    logprobs: Float[Tensor, " tokens"]
    values: Float[Tensor, " tokens"] | None = None
    reference: Float[Tensor, " tokens"] | None = None
    teacher: Float[Tensor, " tokens"] | None = None


Scores = Sequence[Sequence[TokenScores]]
"""Those of every trajectory of every group."""


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """The parts of the loss of each token of a micro-batch."""

    logprobs: Float[Tensor, "batch actions"]
    """Under the policy that is being updated, with gradient."""
    old_logprobs: Float[Tensor, "batch actions"]
    """Before the first step of the update."""
    advantages: Float[Tensor, "batch actions"]
    mask: Bool[Tensor, "batch actions"]
    """True on action tokens."""
    weights: Float[Tensor, "batch actions"] | None = None
    """Factors of the policy's term: corrections and selections, without gradient; None where all are 1."""
    values: Float[Tensor, "batch actions"] | None = None
    """Of the critic, with gradient; None without one."""
    returns: Float[Tensor, "batch actions"] | None = None
    """What the critic should say; None without one."""
    entropy: Float[Tensor, "batch actions"] | None = None
    """Of the distribution that each token was sampled from; its gradient is there where `needs.entropy` is."""
    reference: Float[Tensor, "batch actions"] | None = None
    """Log-probabilities of the policy that the run began with; None unless `needs.reference`."""
    teacher: Float[Tensor, "batch actions"] | None = None
    """Log-probabilities of the teacher; None unless `needs.teacher`."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to learn from groups of trajectories.

    A method of its own is a subclass in a file of its own: `credits` says what every token is to learn, and where the
    clipped loss is not what it wants, `loss` says how. The rest is the trainer's, which knows no method by its name.

    Args:
        format_weight: Weight of the format reward in the reward; 1.0 in the paper, 0.5 in its code.
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
        entropy_coefficient: Weight of an entropy bonus: times the mean entropy of the distributions that tokens were
            sampled from, is taken off the loss (arXiv 1602.01783, section 4). The paper has none.
    """

    asks: ClassVar[Needs] = Needs()
    """What `credits` and `loss` of the class ask for, whatever its numbers are."""
    has_ratio: ClassVar[bool] = True
    """Whether `loss` compares log-probabilities with old ones, so that clips and `level` count."""

    format_weight: float = 1.0
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
    entropy_coefficient: float = 0.0

    def __post_init__(self) -> None:
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
        check_at_least(0, format_weight=self.format_weight, kl_coefficient=self.kl_coefficient)
        check_at_least(0, entropy_coefficient=self.entropy_coefficient)
        _ = self.clip, self.rule  # which check their numbers

    @property
    def needs(self) -> Needs:
        """The numbers that the module brings: those that the class asks for, and those of the shared penalties."""
        reference, entropy = self.kl_coefficient > 0, self.entropy_coefficient > 0
        return replace(self.asks, reference=self.asks.reference or reference, entropy=self.asks.entropy or entropy)

    @property
    def learns_alone(self) -> bool:
        """Whether an episode teaches something where its group has no other one to compare it with."""
        return self.asks.values or self.asks.teacher

    @property
    def clip(self) -> ClipRange:
        """The ratios that still count."""
        return ClipRange(low=self.clip_low, high=self.clip_high, dual=self.dual_clip)

    @property
    def rule(self) -> Correction | None:
        """The correction of what an older policy or another program sampled."""
        return Correction.named(self.correction, self.correction_band)

    @abstractmethod
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        """Return the credit of every trajectory of every group, in their order.

        Args:
            groups: All groups of a batch.
            scores: What policies and critic say of the sampled tokens of each trajectory; None unless `needs.scores`.
        """

    def all_credits(self, groups: Sequence[Group]) -> list[list[Credit]]:
        """Return the credits as if a batch had room for all: what a buffer compares trajectories by."""
        return self.credits(groups)

    def measure(self, groups: Sequence[Group], credits: Sequence[Sequence[Credit]]) -> dict[str, float]:
        """Return numbers to log about the credits of a batch, by their names in full."""
        return {}

    def complaint(self, tokens: int) -> str | None:
        """Return what is wrong with batches of at most so many sampled tokens: as configured, or as the first one."""
        return None

    def expected(self, values: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """Return what the values of a critic say of the returns that it is taught: the values themselves."""
        return values

    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        """Return what each trajectory of a group earns in an update, which is also what metrics show: by its steps."""
        return torch.stack([self.step_rewards(trajectory).sum() for trajectory in group.trajectories])

    def step_rewards(self, trajectory: Trajectory) -> Float[Tensor, " steps"]:
        """Return the environment's rewards of a trajectory's steps, and in the last one that of the trajectory too."""
        rewards = torch.tensor([step.reward for step in trajectory.steps], dtype=torch.float32)
        rewards[-1] += trajectory_reward(trajectory, format_weight=self.format_weight)
        return rewards

    def loss(self, terms: TokenTerms) -> TokenLoss:
        """Return the loss of each token: the clipped surrogate."""
        return policy_loss(
            terms.logprobs,
            terms.old_logprobs,
            terms.advantages,
            terms.mask,
            clip=self.clip,
            level=self.level,
            weights=terms.weights,
        )

    def average(self, sequences: float, tokens: float, share: float) -> MinibatchAverage:
        """Return the average over the tokens of a minibatch.

        Args:
            sequences: Sequences of the minibatch, divided by the ranks, which average their gradients.
            tokens: Its sampled tokens, divided likewise.
            share: The part of the batch that one minibatch of a pass is, divided likewise: 1 / (minibatches · ranks).
        """
        return MinibatchAverage(self.aggregation, sequences=sequences, tokens=tokens, length=self.dr_grpo_length)

    def penalties(self, terms: TokenTerms) -> dict[str, tuple[float, Float[Tensor, "batch actions"]]]:
        """Return what is added to the loss of each token, whatever its advantage: by name, its coefficient and value.

        The mean of the value is logged as `train/<name>`.
        """
        found = {}
        if self.kl_coefficient > 0:
            assert terms.reference is not None, "needs.reference"
            divergence = kl_divergence(terms.logprobs, terms.reference, estimator=self.kl)
            found["kl_reference"] = self.kl_coefficient, divergence
        if self.entropy_coefficient > 0:
            assert terms.entropy is not None, "needs.entropy"
            found["entropy"] = -self.entropy_coefficient, terms.entropy
        return found

    def weights(
        self,
        old_logprobs: Float[Tensor, "batch actions"],
        sampler_logprobs: Float[Tensor, "batch actions"],
        mask: Bool[Tensor, "batch actions"],
        replayed: Bool[Tensor, " batch"],
    ) -> CorrectionWeights | None:
        """Return the weight of each token for how far its sampler was off-policy; None where nothing is corrected.

        A replayed success counts in full: it is there because the policy would hardly sample it.

        Args:
            old_logprobs: Of the policy before the update.
            sampler_logprobs: Of the engine at generation.
            mask: True on action tokens.
            replayed: True for sequences that replay put in.
        """
        if self.rule is None:
            return None
        found = self.rule.weights(old_logprobs, sampler_logprobs, mask)
        spared = replayed[:, None]
        return CorrectionWeights(torch.where(spared, mask.to(found.weights.dtype), found.weights), found.cut & ~spared)
