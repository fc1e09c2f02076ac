"""Shortest-path rewards (SPA of MobileRL, arXiv 2509.18119): of two successes, the shorter one earns more."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.bounds import Share, Threshold, checked
from arpo.methods.grpo import GRPO
from arpo.methods.method import Needs
from arpo.types import Group


@checked
@dataclass(frozen=True, kw_only=True)
class ShortestPath(GRPO):
    """GRPO in which a success of T steps earns 1 - α (T - T_min) / T of its task reward.

    T_min is the length of the shortest success of the group. Failures, and what the parser says, count as in GRPO. A
    group that succeeds as a whole teaches to succeed in fewer steps.

    Args:
        shortening: α: 0 is GRPO, and at 1 a success of twice the steps earns half. The paper does not say its value.
        success_threshold: A trajectory is a success when its task reward lies above it.
    """

    asks: ClassVar[Needs] = Needs(steps=True)

    shortening: Share = 0.5
    success_threshold: Threshold = 0.5

    @override
    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        plain = super().rewards(group)
        succeeded = torch.tensor([is_success(t, threshold=self.success_threshold) for t in group.trajectories])
        if not bool(succeeded.any()):
            return plain
        tasks = torch.tensor([each.task_reward for each in group.trajectories])
        steps = torch.tensor([float(len(each.steps)) for each in group.trajectories])
        lost = self.shortening * (steps - steps[succeeded].min()) / steps
        return plain - torch.where(succeeded, lost * tasks, 0.0)
