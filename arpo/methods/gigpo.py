"""GiGPO (arXiv 2505.10978): a trajectory against its group, and a step against those that saw the same screen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from arpo.algorithms.returns import Spread, discounted_returns, relative, relative_by_key
from arpo.errors import check_at_least, check_one_of, check_share
from arpo.methods.method import Credit, Method
from arpo.types import Group

EpisodeMean = Literal["steps", "trajectories"]


@dataclass(frozen=True, kw_only=True)
class GiGPO(Method):
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

    discount: float = 0.95
    step_weight: float = 1.0
    episode_mean: EpisodeMean = "steps"
    std: Spread = "none"

    def __post_init__(self) -> None:
        check_one_of(Spread, std=self.std)
        check_one_of(EpisodeMean, episode_mean=self.episode_mean)
        check_at_least(0, step_weight=self.step_weight)
        check_share(discount=self.discount)
        super().__post_init__()

    @override
    def credits(self, groups: Sequence[Group], scores: object = None) -> list[list[Credit]]:
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> list[Credit]:
        lengths = [len(trajectory.steps) for trajectory in group.trajectories]
        rewards = [self.step_rewards(trajectory) for trajectory in group.trajectories]
        earned = self.rewards(group)
        counted = earned.repeat_interleave(torch.tensor(lengths)) if self.episode_mean == "steps" else earned
        of_episodes = relative(earned, std=self.std, among=counted).repeat_interleave(torch.tensor(lengths))
        returns = torch.cat([discounted_returns(row, discount=self.discount) for row in rewards])
        screens = [step.screenshot for trajectory in group.trajectories for step in trajectory.steps]
        of_steps = relative_by_key(returns, screens, std=self.std)
        rows = torch.split(of_episodes + self.step_weight * of_steps, lengths)
        return [Credit.of_steps(trajectory, row) for trajectory, row in zip(group.trajectories, rows, strict=True)]
