"""The step-level GRPO of ComputerRL (arXiv 2508.14040): right steps of a success against all steps of the group."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.returns import Spread, relative
from arpo.errors import ConfigError, check_one_of
from arpo.methods.method import Credit, Method
from arpo.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class ComputerRL(Method):
    """One advantage a step, the same for all of its tokens: A = (r - μ) / σ over all steps of the group.

    r is the task reward of the trajectory in a step whose response parsed, and 0 in one whose response did not. What
    did not parse is held back by this gate, and not by a format reward.

    Args:
        std: σ: `sample` divides by the number of steps less one, `population` by it, and `none` is 1.
    """

    format_weight: float = 0.0
    std: Spread = "sample"

    def __post_init__(self) -> None:
        check_one_of(Spread, std=self.std)
        if self.format_weight != 0:
            raise ConfigError(
                f"format_weight must be 0, got {self.format_weight}: here a step that does not parse earns nothing"
            )
        super().__post_init__()

    @override
    def credits(self, groups: Sequence[Group], scores: object = None) -> list[list[Credit]]:
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> list[Credit]:
        earned = [self.step_rewards(trajectory) for trajectory in group.trajectories]
        rows = torch.split(relative(torch.cat(earned), std=self.std), [len(row) for row in earned])
        return [Credit.of_steps(trajectory, row) for trajectory, row in zip(group.trajectories, rows, strict=True)]

    @override
    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        return torch.stack([self.step_rewards(trajectory).mean() for trajectory in group.trajectories])

    @override
    def step_rewards(self, trajectory: Trajectory) -> Float[Tensor, " steps"]:
        return torch.tensor([0.0 if step.parse_error else trajectory.task_reward for step in trajectory.steps])
