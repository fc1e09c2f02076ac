"""The frame of every method that learns from rollouts, and the choices that all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.losses import (
    Aggregation,
    ClipRange,
    Correction,
    CorrectionName,
    CorrectionWeights,
    KLEstimator,
    MinibatchAverage,
    RatioLevel,
    TokenLoss,
    kl_divergence,
    policy_loss,
)
from arpo.algorithms.rewards import trajectory_reward
from arpo.bounds import AtLeastOne, NotNegative, PositiveShare, Share
from arpo.errors import ConfigError
from arpo.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Credit:
    """The lesson of each sampled token of a trajectory, step after step."""

    advantages: Float[Tensor, " tokens"]
    returns: Float[Tensor, " tokens"] | None = None
    """The target of a critic before each; None without a critic."""

    @classmethod
    def of_steps(cls, trajectory: Trajectory, advantages: Float[Tensor, " steps"]) -> "Credit":
        """Return the credit of a trajectory in which every token has the advantage of its step."""
        lengths = torch.tensor(trajectory.trained_lengths)
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
    steps: bool = False
    """A step on the desktop for each exchange: no credit can be given to other ones."""

    @property
    def scores(self) -> bool:
        """Whether `credits` waits for a forward over the batch."""
        return self.values or self.logprobs or self.teacher


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The scores of each sampled token of a trajectory before the update; None without a need for them."""

    logprobs: Float[Tensor, " tokens"]
    values: Float[Tensor, " tokens"] | None = None
    reference: Float[Tensor, " tokens"] | None = None
    teacher: Float[Tensor, " tokens"] | None = None


Scores = Sequence[Sequence[TokenScores]]
"""Those of every trajectory of every group."""
Predictions = Sequence[Float[Tensor, " tokens"]]
"""The return that a critic predicts at each token, of every trajectory of a batch."""


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """The parts of the loss of each token of a micro-batch; None without a need for them."""

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
    """The critic's, with gradient, and `returns` its targets."""
    returns: Float[Tensor, "batch actions"] | None = None
    entropy: Float[Tensor, "batch actions"] | None = None
    """Of the distribution that each token was sampled from; its gradient is there where `needs.entropy` is."""
    reference: Float[Tensor, "batch actions"] | None = None
    teacher: Float[Tensor, "batch actions"] | None = None
    """Log-probabilities of the policy that the run began with, and of the teacher."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to learn from groups of trajectories.

    A method is a subclass in a file of its own, `@checked` as a dataclass: `credits` gives every token its advantage,
    and `loss` stands where the clipped one is not its own. The trainer knows no method by its name.

    Args:
        format_weight: Weight of the format reward in the reward; 1.0 in the paper, 0.5 in its code.
        clip_low: The ratio is clipped below at 1 - `clip_low`.
        clip_high: The ratio is clipped above at 1 + `clip_high`.
        dual_clip: Bound on the loss of a negative advantage, as a multiple of it; None is off, as in the paper.
        level: Ratio per `token`, or per `sequence` (GSPO, arXiv 2507.18071).
        aggregation: How token losses become one number.
        dr_grpo_length: The constant length of the aggregation `dr_grpo`, and of no other.
        correction: Weights for how far the engine that sampled was from the policy that learns, for
            `max_policy_lag` > 0; the names are those of `arpo.algorithms.losses.PUBLISHED`, or `none`.
        correction_band: Bounds [low, high] of the ratio, where they differ from those that the correction has.
        high_entropy_steps: Share of a group's steps to train, those in which the policy was most undecided (0.8 in
            DART, arXiv 2509.23866); None trains all.
        kl_coefficient: Weight of the KL term; the paper has none.
        kl: Estimator of the KL term.
        entropy_coefficient: Weight of an entropy bonus: times the mean entropy of the distributions that tokens were
            sampled from, is taken off the loss (arXiv 1602.01783, section 4). The paper has none.
    """

    asks: ClassVar[Needs] = Needs()
    """The needs of the class's `credits` and `loss`, whatever its options are."""
    has_ratio: ClassVar[bool] = True
    """Whether `loss` compares log-probabilities with old ones, so that clips and `level` count."""

    format_weight: NotNegative = 1.0
    clip_low: Share = 0.2
    clip_high: NotNegative = 0.3
    dual_clip: float | None = None
    level: RatioLevel = "token"
    aggregation: Aggregation = "sequence"
    dr_grpo_length: AtLeastOne | None = None
    correction: CorrectionName = "none"
    correction_band: Sequence[float] | None = None
    high_entropy_steps: PositiveShare | None = None
    kl_coefficient: NotNegative = 0.0
    kl: KLEstimator = "k3"
    entropy_coefficient: NotNegative = 0.0

    def __post_init__(self) -> None:
        if (self.aggregation == "dr_grpo") != (self.dr_grpo_length is not None):
            raise ConfigError(
                f"dr_grpo_length={self.dr_grpo_length} with aggregation={self.aggregation}: the length belongs to "
                "aggregation=dr_grpo, which needs it, and to no other"
            )
        _ = self.clip, self.rule  # which check their numbers

    @property
    def needs(self) -> Needs:
        """The numbers that the module brings: those that the class asks for, and those of the shared penalties."""
        reference, entropy = self.kl_coefficient > 0, self.entropy_coefficient > 0
        return replace(self.asks, reference=self.asks.reference or reference, entropy=self.asks.entropy or entropy)

    @property
    def allows_single_episode_groups(self) -> bool:
        """Whether an episode teaches something without another one of its group to compare it with."""
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
        """Return the credit of every trajectory of every group of a batch, in their order.

        The scores of its sampled tokens, by policies and critic, are there where `needs.scores` is.
        """

    def checked_credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        """Return `credits`, after a check that each sampled token of each trajectory has one of each kind."""
        if self.needs.steps:
            self._check_steps(groups)
        credits = self.credits(groups, scores)
        for group, row in zip(groups, credits, strict=True):
            for trajectory, credit in zip(group.trajectories, row, strict=True):
                for name, numbers in (("advantages", credit.advantages), ("returns", credit.returns)):
                    if numbers is not None and len(numbers) != trajectory.action_tokens:
                        raise ValueError(
                            f"credits gave {len(numbers)} {name} to a trajectory of {trajectory.action_tokens} "
                            "sampled tokens; each needs one, in their order (Credit.of_steps, Credit.of_trajectory)"
                        )
        return credits

    def _check_steps(self, groups: Sequence[Group]) -> None:
        trajectories = (trajectory for group in groups for trajectory in group.trajectories)
        if odd := next((each for each in trajectories if not each.has_a_step_an_exchange), None):
            raise ConfigError(
                f"{type(self).__name__} credits steps, and trajectory {odd.id!r} has {len(odd.steps)} steps and "
                f"{len(odd.exchanges)} exchanges, which must be one and the same: choose a method that credits "
                "trajectories, such as GRPO, the default"
            )

    def all_credits(self, groups: Sequence[Group]) -> list[list[Credit]]:
        """Return the credits as if a batch had room for all, by which a buffer compares trajectories."""
        return self.credits(groups)

    def measure(self, groups: Sequence[Group], credits: Sequence[Sequence[Credit]]) -> dict[str, float]:
        """Return numbers to log about the credits of a batch, by their names in full."""
        return {}

    def complaint(self, tokens: int) -> str | None:
        """Return the trouble with batches of at most so many sampled tokens, as configured or as the first one."""
        return None

    def predicted_returns(self, values: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        """Return a critic's prediction of the returns that it is taught, by default its values themselves."""
        return values

    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        """Return the reward of each trajectory of a group, in updates, metrics and replay: that of its steps."""
        return torch.stack([self.step_rewards(trajectory).sum() for trajectory in group.trajectories])

    def step_rewards(self, trajectory: Trajectory) -> Float[Tensor, " steps"]:
        """Return the environment's rewards of a trajectory's steps, and in the last one that of the trajectory too."""
        rewards = torch.tensor([step.reward for step in trajectory.steps] or [0.0], dtype=torch.float32)
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

    def average(self, sequences: float, tokens: float, episodes: float, share: float) -> MinibatchAverage:
        """Return the average over the tokens of a minibatch of so many sequences and sampled tokens.

        A pass over the batch has 1 / `share` of them, and `episodes` are its episodes by them. All four are divided by
        the ranks, which average gradients.
        """
        return MinibatchAverage(self.aggregation, sequences, tokens, self.dr_grpo_length, episodes)

    def penalties(self, terms: TokenTerms) -> dict[str, tuple[float, Float[Tensor, "batch actions"]]]:
        """Return the additions to the loss of each token, whatever its advantage: by name, coefficient and value.

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
        """
        if self.rule is None:
            return None
        found = self.rule.weights(old_logprobs, sampler_logprobs, mask)
        spared = replayed[:, None]
        return CorrectionWeights(torch.where(spared, mask.to(found.weights.dtype), found.weights), found.cut & ~spared)


@dataclass(frozen=True, kw_only=True)
class StepMethod(Method):
    """A method that gives each step one advantage, the same for all of its tokens, from the steps of its group."""

    asks: ClassVar[Needs] = Needs(steps=True)

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        found: list[list[Credit]] = []
        for group in groups:
            rows = torch.split(self.advantages(group), [len(trajectory.steps) for trajectory in group.trajectories])
            found.append([Credit.of_steps(*pair) for pair in zip(group.trajectories, rows, strict=True)])
        return found

    @abstractmethod
    def advantages(self, group: Group) -> Float[Tensor, " steps"]:
        """Return the advantages of all steps of a group, trajectory after trajectory."""


@dataclass(frozen=True, kw_only=True)
class CriticMethod(Method):
    """A method that learns from the predictions of a critic, which compares all trajectories of a batch."""

    asks: ClassVar[Needs] = Needs(values=True, steps=True)

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        predicted = [
            self.predicted_returns(each.values) for row in scores or () for each in row if each.values is not None
        ]
        credits = iter(self.credits_of([each for group in groups for each in group.trajectories], predicted))
        return [[next(credits) for _ in group.trajectories] for group in groups]

    @abstractmethod
    def credits_of(self, trajectories: Sequence[Trajectory], predicted: Predictions) -> list[Credit]:
        """Return the credit of every trajectory of a batch, by the predictions of a critic."""
