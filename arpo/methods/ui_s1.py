"""Semi-online RL (UI-S1, arXiv 2509.11543): steps against the recording of an expert, and against each other."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import relative, relative_by_key
from arpo.bounds import NotNegative, Share, checked
from arpo.errors import ConfigError
from arpo.methods.method import Needs, StepMethod
from arpo.types import Group, Trajectory


@checked
@dataclass(frozen=True, kw_only=True)
class UIS1(StepMethod):
    """One advantage a step, the same for all of its tokens: A = w_e A_episode + w_s A_step, for `env=recorded`.

    r is the environment's reward of the step, and the task reward has no part in it; a step matches the expert's where
    it parsed and was not patched.

    * The return of a step that matches is R_t = r_t + γ R_{t+1} where the next one matches, too; otherwise, and of a
      step that does not match, it is r_t.
    * A_episode: r relative to the steps of all episodes of the group, as in the authors' code; in the paper it is the
      return of the episode.
    * A_step: R relative to those at the same step of the group's other episodes; 0 where no other one came so far.

    Both are divided by the sample deviation. A step alone in its group is 0; the authors' code has A_episode = r.
    A group is learned from if the returns of its first steps differ enough: dynamic sampling, which in the paper also
    goes on until there are enough of such groups; here an update has fewer.

    Args:
        discount: γ.
        episode_weight: w_e.
        step_weight: w_s.
        least_spread: The population deviation of the returns of first steps must lie above it; None learns from all.
    """

    asks: ClassVar[Needs] = Needs(step_rewards=True, steps=True)

    format_weight: NotNegative = 0.0
    discount: Share = 0.5
    episode_weight: NotNegative = 1.0
    step_weight: NotNegative = 1.0
    least_spread: NotNegative | None = 0.3

    def __post_init__(self) -> None:
        if self.format_weight != 0:
            raise ConfigError(
                f"format_weight must be 0, got {self.format_weight}: the format counts in the reward of a step "
                "(env.make_env.score.format)"
            )
        super().__post_init__()

    @override
    def advantages(self, group: Group) -> Float[Tensor, " steps"]:
        returns = [self.returns(trajectory) for trajectory in group.trajectories]
        rewards = torch.cat([self.step_rewards(trajectory) for trajectory in group.trajectories])
        numbers = [number for row in returns for number in range(len(row))]
        of_steps = relative_by_key(torch.cat(returns), numbers, std="sample")
        advantages = self.episode_weight * relative(rewards, std="sample") + self.step_weight * of_steps
        first = torch.stack([row[0] for row in returns])
        if self.least_spread is not None and bool(first.std(correction=0) <= self.least_spread):
            advantages = torch.zeros_like(advantages)
        return advantages

    @override
    def step_rewards(self, trajectory: Trajectory) -> Float[Tensor, " steps"]:
        return torch.tensor([step.reward for step in trajectory.steps], dtype=torch.float32)

    def returns(self, trajectory: Trajectory) -> Float[Tensor, " steps"]:
        """Return R of each step of a trajectory."""
        returns: list[float] = []
        following = 0.0
        for step in reversed(trajectory.steps):
            matches = not step.patch and not step.parse_error
            returns.append(step.reward + (self.discount * following if matches else 0.0))
            following = returns[-1] if matches else 0.0
        return torch.tensor(returns[::-1], dtype=torch.float32)
