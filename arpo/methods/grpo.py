"""Advantages relative to the rest of a group: GRPO, DART's step-GRPO, Dr. GRPO, RLOO and pass@k, by one option."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import Deviation, Estimator, group_advantages, group_rewards
from arpo.bounds import NotNegative, checked
from arpo.methods.method import Credit, Method, Needs, Scores
from arpo.types import Group


@checked
@dataclass(frozen=True, kw_only=True)
class GRPO(Method):
    """One advantage a trajectory, the same for all of its tokens, from the rewards of its group.

    Args:
        estimator: How rewards of a group become advantages; see `group_advantages`.
        std: Standard deviation of the group: `population` as in the paper, `sample` as in its code.
        imitation: Times the task reward, is added to every advantage, so that a success is imitated even where its
            whole group succeeds: at a ratio of 1 the gradient is that of the language-model loss on positive
            examples (arXiv 2504.05118, section 4.3). The paper has none.
    """

    estimator: Estimator = "grpo"
    std: Deviation = "population"
    imitation: NotNegative = 0.0

    @property
    @override
    def allows_single_episode_groups(self) -> bool:
        return self.imitation > 0 or super().allows_single_episode_groups

    @property
    @override
    def needs(self) -> Needs:
        return replace(super().needs, steps=self.asks.steps or self.estimator == "step_grpo")

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        pairs = (zip(group.trajectories, self.advantages(group).tolist(), strict=True) for group in groups)
        return [[Credit.of_trajectory(*pair) for pair in row] for row in pairs]

    def advantages(self, group: Group) -> Float[Tensor, " group"]:
        """Return one advantage a trajectory of the group."""
        rewards = self.rewards(group)
        steps = torch.tensor([len(trajectory.steps) for trajectory in group.trajectories])
        relative = group_advantages(rewards, estimator=self.estimator, std=self.std, steps=steps)
        return relative + self.imitation * torch.tensor([each.task_reward for each in group.trajectories])

    @override
    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        return group_rewards(group, format_weight=self.format_weight)
