"""PPO with a critic (arXiv 1707.06347): advantages of tokens by GAE (arXiv 1506.02438)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.losses import TokenLoss
from arpo.algorithms.rewards import generalized_advantages, relative
from arpo.bounds import Share, checked
from arpo.methods.method import Credit, CriticMethod, Predictions, TokenTerms
from arpo.types import Trajectory


@checked
@dataclass(frozen=True, kw_only=True)
class PPO(CriticMethod):
    """One advantage a token, over what a critic expected, relative to all tokens of the batch.

    That is less their mean and divided by their population deviation; verl and TRL divide by the sample's.

    The reward of a step is earned by its last token, that of the trajectory by the last of all. The critic is taught
    A + V, before the advantages are normalised: the mean of (V - A - V_old)² / 2 is added to the loss.

    Args:
        discount: γ, from token to token.
        gae_lambda: λ of GAE; 1 asks the critic for nothing but a baseline.
    """

    discount: Share = 1.0
    gae_lambda: Share = 0.95

    @override
    def credits_of(self, trajectories: Sequence[Trajectory], predicted: Predictions) -> list[Credit]:
        pairs = list(zip(trajectories, predicted, strict=True))
        raw = torch.cat([self._advantages(*pair, self.policy_lambda(pair[0])) for pair in pairs])
        rows = torch.split(relative(raw, std="population"), [len(row) for row in predicted])
        targets = [self._advantages(*pair, self.gae_lambda) + pair[1] for pair in pairs]
        return [Credit(*pair) for pair in zip(rows, targets, strict=True)]

    def policy_lambda(self, trajectory: Trajectory) -> float:
        """Return λ of the policy's advantages, where it is not that of the critic's targets."""
        return self.gae_lambda

    def _advantages(self, trajectory: Trajectory, values: Tensor, gae_lambda: float) -> Tensor:
        """Return the advantage of each token of a trajectory, [tokens]."""
        rewards = torch.zeros_like(values)
        ends = torch.tensor(trajectory.trained_lengths).cumsum(0) - 1
        rewards[ends] = self.step_rewards(trajectory)
        return generalized_advantages(rewards, values, discount=self.discount, gae_lambda=gae_lambda)

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        assert terms.values is not None, "needs.values"
        assert terms.returns is not None, "needs.values"
        policy = super().loss(terms)
        errors = (terms.values - terms.returns).square() / 2
        return TokenLoss(policy.losses + errors, policy.metrics, {"value_error": errors.detach()})
