"""The step-level GRPO of ComputerRL (arXiv 2508.14040): right steps of a success against all steps of the group."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import Spread, relative
from arpo.bounds import NotNegative, checked
from arpo.errors import ConfigError
from arpo.methods.method import StepMethod
from arpo.types import Group, Trajectory


@checked
@dataclass(frozen=True, kw_only=True)
class ComputerRL(StepMethod):
    """One advantage a step, the same for all of its tokens: A = (r - μ) / σ over all steps of the group.

    r is the task reward of the trajectory in a step whose response parsed, and 0 in one whose response did not. What
    did not parse is held back by this gate, and not by a format reward.

    Args:
        std: σ: `sample` divides by the number of steps less one, `population` by it, and `none` is 1.
    """

    format_weight: NotNegative = 0.0
    std: Spread = "sample"

    def __post_init__(self) -> None:
        if self.format_weight != 0:
            raise ConfigError(
                f"format_weight must be 0, got {self.format_weight}: here a step that does not parse earns nothing"
            )
        super().__post_init__()

    @override
    def advantages(self, group: Group) -> Float[Tensor, " steps"]:
        return relative(torch.cat([self.step_rewards(each) for each in group.trajectories]), std=self.std)

    @override
    def rewards(self, group: Group) -> Float[Tensor, " group"]:
        return torch.stack([self.step_rewards(trajectory).mean() for trajectory in group.trajectories])

    @override
    def step_rewards(self, trajectory: Trajectory) -> Float[Tensor, " steps"]:
        return torch.tensor([0.0 if step.parse_error else trajectory.task_reward for step in trajectory.steps])
