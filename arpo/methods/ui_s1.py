"""Semi-online RL (UI-S1, arXiv 2509.11543): steps against the recording of an expert, and against each other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.returns import relative, relative_by_key
from arpo.errors import ConfigError, check_at_least, check_share
from arpo.methods.method import Credit, Method, Needs
from arpo.types import Group, Trajectory


@dataclass(frozen=True, kw_only=True)
class UIS1(Method):
    """One advantage a step, the same for all of its tokens: A = w_e A_episode + w_s A_step, for `env=recorded`.

    r is the environment's reward of the step, and the task reward has no part in it; a step matches the expert's where
    it parsed and nobody has patched it.

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

    asks: ClassVar[Needs] = Needs(step_rewards=True)

    format_weight: float = 0.0
    discount: float = 0.5
    episode_weight: float = 1.0
    step_weight: float = 1.0
    least_spread: float | None = 0.3

    def __post_init__(self) -> None:
        check_share(discount=self.discount)
        check_at_least(0, episode_weight=self.episode_weight, step_weight=self.step_weight)
        if self.least_spread is not None:
            check_at_least(0, least_spread=self.least_spread)
        if self.format_weight != 0:
            raise ConfigError(
                f"format_weight must be 0, got {self.format_weight}: the format counts in the reward of a step "
                "(env.make_env.score.format)"
            )
        super().__post_init__()

    @override
    def credits(self, groups: Sequence[Group], scores: object = None) -> list[list[Credit]]:
        return [self._of(group) for group in groups]

    def _of(self, group: Group) -> list[Credit]:
        lengths = [len(trajectory.steps) for trajectory in group.trajectories]
        returns = [self.returns(trajectory) for trajectory in group.trajectories]
        rewards = torch.cat([self.step_rewards(trajectory) for trajectory in group.trajectories])
        numbers = [number for row in returns for number in range(len(row))]
        of_steps = relative_by_key(torch.cat(returns), numbers, std="sample")
        advantages = self.episode_weight * relative(rewards, std="sample") + self.step_weight * of_steps
        first = torch.stack([row[0] for row in returns])
        if self.least_spread is not None and bool(first.std(correction=0) <= self.least_spread):
            advantages = torch.zeros_like(advantages)
        rows = torch.split(advantages, lengths)
        return [Credit.of_steps(trajectory, row) for trajectory, row in zip(group.trajectories, rows, strict=True)]

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
