"""DigiRL (arXiv 2406.11896): imitation of the steps that did better than a critic expected, in the best episodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from typing_extensions import override

from arpo.algorithms.losses import TokenLoss
from arpo.algorithms.rewards import discounted_returns
from arpo.bounds import PositiveShare, Share, checked
from arpo.methods.method import Credit, CriticMethod, Predictions, TokenTerms
from arpo.types import Trajectory

STEP_COST = 0.05
"""The gain below which a step is not imitated, as in the authors' code."""


@checked
@dataclass(frozen=True, kw_only=True)
class DigiRL(CriticMethod):
    """Imitation of steps with a positive advantage, in the trajectories that surprise the critic most.

    The critic is a classifier: σ of what it says before the first token of a step is V, the probability that the
    discounted return G from there is above 0. All tokens of the step are taught that by cross-entropy. V of the first
    step is the value of the instruction, too, whose target is the same. Of all trajectories of a batch those learn
    whose reward less that value is not below the quantile 1 - `kept`, ties included. In them a step has

        A = V' - V - 0.05 + r + G, clipped to [0, 1]

    and the loss of its tokens is -log π where A > 0, else 0. There is no ratio, so clips and `level` change nothing.

    A is that of the authors' code, not of the paper, which mixes the final reward and the critic's gain. Their code
    differs in this: V' after the last step is the critic's, here 0; they take the smaller of two critics, which here
    would be one, linear, from 0, of the same states; they keep a share of all trajectories so far, here of a batch.

    Args:
        discount: γ from step to step, in G.
        kept: The share of trajectories that learn.
    """

    has_ratio: ClassVar[bool] = False

    discount: Share = 0.5
    kept: PositiveShare = 0.1

    @override
    def credits_of(self, trajectories: Sequence[Trajectory], predicted: Predictions) -> list[Credit]:
        rewards = [self.step_rewards(trajectory) for trajectory in trajectories]
        surprises = torch.stack(
            [earned.sum() - row[0] for earned, row in zip(rewards, predicted, strict=True)]
        ).double()
        learning = surprises >= torch.quantile(surprises, 1 - self.kept)
        return [self._credit(*part) for part in zip(trajectories, rewards, predicted, learning, strict=True)]

    def _credit(self, trajectory: Trajectory, rewards: Tensor, values: Tensor, learns: Tensor) -> Credit:
        """Return the credit of a trajectory, of its rewards [steps], values [tokens] and whether it learns, []."""
        lengths = torch.tensor(trajectory.trained_lengths)
        before = values[lengths.cumsum(0) - lengths]
        after = torch.cat([before[1:], before.new_zeros(1)])
        returns = discounted_returns(rewards, discount=self.discount)
        advantages = (after - before - STEP_COST + rewards + returns).clamp(0, 1) * learns
        targets = Credit.of_steps(trajectory, (returns > 0).float())
        return Credit(Credit.of_steps(trajectory, advantages).advantages, targets.advantages)

    @override
    def predicted_returns(self, values: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
        return torch.sigmoid(values)

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        assert terms.values is not None, "needs.values"
        assert terms.returns is not None, "needs.values"
        imitation = torch.where(terms.advantages > 0, -terms.logprobs, 0.0)
        if terms.weights is not None:
            imitation = imitation * terms.weights.detach()
        errors = binary_cross_entropy_with_logits(terms.values, terms.returns, reduction="none")
        return TokenLoss(imitation + errors, measured={"value_error": errors.detach()})
