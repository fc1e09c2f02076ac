"""The method newmethod: its formula and its source belong here."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from arpo.bounds import Positive, checked
from arpo.methods.method import Credit, Method, Scores
from arpo.types import Group


@checked
@dataclass(frozen=True, kw_only=True)
class NewMethod(Method):
    """A = α (r - μ): the reward of a trajectory against the mean of its group, for all of its tokens.

    Args:
        scale: α.
    """

    scale: Positive = 1.0

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        return [self._of_group(group) for group in groups]

    def _of_group(self, group: Group) -> list[Credit]:
        rewards = self.rewards(group)
        advantages = (self.scale * (rewards - rewards.mean())).tolist()
        return [Credit.of_trajectory(*pair) for pair in zip(group.trajectories, advantages, strict=True)]
