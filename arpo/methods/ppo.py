"""PPO with a critic (arXiv 1707.06347): advantages of tokens by GAE (arXiv 1506.02438)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.losses import TokenLoss
from arpo.algorithms.returns import generalized_advantages, relative
from arpo.errors import check_share
from arpo.methods.method import Credit, Method, Needs, Scores, TokenTerms
from arpo.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class PPO(Method):
    """One advantage a token, over what a critic expected, relative to all tokens of the batch.

    That is less their mean and divided by their population deviation; verl and TRL divide by the sample's.

    The reward of a step is earned by its last token, that of the trajectory by the last of all. The critic is taught
    A + V, before the advantages are normalised: the mean of (V - A - V_old)² / 2 is added to the loss.

    Args:
        discount: γ, from token to token.
        gae_lambda: λ of GAE; 1 asks the critic for nothing but a baseline.
    """

    asks: ClassVar[Needs] = Needs(values=True)

    discount: float = 1.0
    gae_lambda: float = 0.95

    def __post_init__(self) -> None:
        check_share(discount=self.discount, gae_lambda=self.gae_lambda)
        super().__post_init__()

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        said = [each.values for row in scores or () for each in row if each.values is not None]
        pairs = list(zip(trajectories, said, strict=True))
        raw = torch.cat([self._advantages(*pair, self.policy_lambda(pair[0])) for pair in pairs])
        rows = torch.split(relative(raw, std="population"), [len(row) for row in said])
        targets = [self._advantages(*pair, self.gae_lambda) + pair[1] for pair in pairs]
        credits = iter([Credit(*pair) for pair in zip(rows, targets, strict=True)])
        return [[next(credits) for _ in group.trajectories] for group in groups]

    def policy_lambda(self, trajectory: Trajectory) -> float:
        """Return λ of the policy's advantages, where it is not that of the critic's targets."""
        return self.gae_lambda

    def _advantages(self, trajectory: Trajectory, values: Tensor, gae_lambda: float) -> Tensor:
        """Return the advantage of each token of a trajectory, [tokens]."""
        rewards = torch.zeros_like(values)
        ends = torch.tensor([len(step.response_ids) for step in trajectory.steps]).cumsum(0) - 1
        rewards[ends] = self.step_rewards(trajectory)
        return generalized_advantages(rewards, values, discount=self.discount, gae_lambda=gae_lambda)

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        assert terms.values is not None, "needs.values"
        assert terms.returns is not None, "needs.values"
        policy = super().loss(terms)
        errors = (terms.values - terms.returns).square() / 2
        return TokenLoss(policy.losses + errors, policy.metrics, {"value_error": errors.detach()})
