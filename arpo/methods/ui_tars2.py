"""The PPO of UI-TARS-2 (arXiv 2509.02544): decoupled GAE, whose λ grows with the length of an episode."""

from dataclasses import dataclass

from typing_extensions import override

from arpo.errors import check_positive
from arpo.methods.ppo import PPO
from arpo.types import Trajectory


@dataclass(frozen=True, kw_only=True)
class UITars2(PPO):
    """PPO with decoupled and length-adaptive GAE (VAPO, arXiv 2504.05118, sections 4.1 and 4.2).

    λ of the policy's advantages is 1 - 1 / (α l) for a trajectory of l sampled tokens, and 0 where that is below 0.

    Args:
        length_weight: α.
        gae_lambda: λ of the critic's targets; 1 teaches it the returns as they were.
    """

    gae_lambda: float = 1.0
    length_weight: float = 0.05

    def __post_init__(self) -> None:
        check_positive(length_weight=self.length_weight)
        super().__post_init__()

    @override
    def policy_lambda(self, trajectory: Trajectory) -> float:
        return max(0.0, 1 - 1 / (self.length_weight * trajectory.action_tokens))
