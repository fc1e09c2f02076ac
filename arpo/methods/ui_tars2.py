"""The PPO of UI-TARS-2 (arXiv 2509.02544): decoupled GAE, whose λ grows with the length of an episode."""

from dataclasses import dataclass

from typing_extensions import override

from arpo.bounds import Positive, Share, checked
from arpo.methods.ppo import PPO
from arpo.types import Trajectory


@checked
@dataclass(frozen=True, kw_only=True)
class UITars2(PPO):
    """PPO with decoupled and length-adaptive GAE (VAPO, arXiv 2504.05118, sections 4.1 and 4.2).

    λ of the policy's advantages is 1 - 1 / (α l) for a trajectory of l sampled tokens, and 0 where that is below 0.

    Args:
        length_weight: α.
        gae_lambda: λ of the critic's targets; 1 teaches it the returns as they were.
    """

    gae_lambda: Share = 1.0
    length_weight: Positive = 0.05

    @override
    def policy_lambda(self, trajectory: Trajectory) -> float:
        return max(0.0, 1 - 1 / (self.length_weight * trajectory.action_tokens))
