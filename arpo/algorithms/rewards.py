"""The reward of a trajectory, from the verdicts of the checker and of the parser."""

import torch
from jaxtyping import Float
from torch import Tensor

from arpo.types import Group, Trajectory


def trajectory_reward(trajectory: Trajectory, *, format_weight: float) -> float:
    """Return the reward of a trajectory: r = r_task + w · r_format (arXiv 2505.16282, section 3.4, equation 2).

    The task reward is in [0, 1]; the format reward is -1 when a response did not parse, else 0. The paper adds
    the two (w = 1), the official code halves the second (w = 0.5).
    """
    return trajectory.task_reward + format_weight * trajectory.format_reward


def group_rewards(group: Group, *, format_weight: float) -> Float[Tensor, " group"]:
    """Return the rewards of a group's trajectories, in their order."""
    return torch.tensor([trajectory_reward(t, format_weight=format_weight) for t in group.trajectories])


def is_success(trajectory: Trajectory, *, threshold: float) -> bool:
    """Return whether the checker's reward lies above the threshold; the format reward plays no part."""
    return trajectory.task_reward > threshold


def is_worth_replaying(trajectory: Trajectory, *, threshold: float, format_weight: float = 1.0) -> bool:
    """Return whether the whole reward, task and format together, lies above the threshold of a success.

    An episode that solved its task and then failed to parse has the reward 1 - 1 = 0: among failures of reward 0 it
    has no advantage, and beside a partial credit it would be pushed down. A reward above the threshold lies above
    that of every trajectory that is no success, so replaying it always pulls towards the success.
    """
    return trajectory_reward(trajectory, format_weight=format_weight) > threshold
