"""GiGPO (arXiv 2505.10978): a trajectory against its group, and a step against those that saw the same screen."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import Spread, discounted_returns, relative, relative_by_key
from arpo.bounds import NotNegative, Share, checked
from arpo.methods.method import StepMethod
from arpo.types import Group

EpisodeMean = Literal["steps", "trajectories"]


@checked
@dataclass(frozen=True, kw_only=True)
class GiGPO(StepMethod):
    """One advantage a step, the same for all of its tokens: A = A_episode + ω A_step.

    * A_episode: all rewards of the trajectory together, those of its steps included, relative to those of the group.
    * A_step: the return of the step, R_t = r_t + γ R_{t+1}, relative to the steps of the group that saw the same
      screenshot, byte for byte; the last step has the reward of the trajectory beside its own. Where no other step saw
      that screenshot it is 0.

    Args:
        discount: γ.
        step_weight: ω.
        episode_mean: Whether mean and deviation of A_episode are over the group's `steps`, so that a trajectory of n
            steps counts n times (the default of the authors' code), or its `trajectories` (the paper, equation 3).
        std: What is divided by after the mean was taken off: `none` is 1, and the paper's choice for long episodes.
    """

    discount: Share = 0.95
    step_weight: NotNegative = 1.0
    episode_mean: EpisodeMean = "steps"
    std: Spread = "none"

    @override
    def advantages(self, group: Group) -> Float[Tensor, " steps"]:
        lengths = [len(trajectory.steps) for trajectory in group.trajectories]
        rewards = [self.step_rewards(trajectory) for trajectory in group.trajectories]
        earned = self.rewards(group)
        counted = earned.repeat_interleave(torch.tensor(lengths)) if self.episode_mean == "steps" else earned
        of_episodes = relative(earned, std=self.std, among=counted).repeat_interleave(torch.tensor(lengths))
        returns = torch.cat([discounted_returns(row, discount=self.discount) for row in rewards])
        screens = [step.screenshot for trajectory in group.trajectories for step in trajectory.steps]
        of_steps = relative_by_key(returns, screens, std=self.std)
        return of_episodes + self.step_weight * of_steps
