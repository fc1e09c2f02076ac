"""The frame of methods that learn from judged trajectories which exist already."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from arpo.bounds import Positive
from arpo.types import Exchange, Trajectory

Answered = Callable[[Trajectory, Sequence[Exchange]], Trajectory]
"""Returns a trajectory in which its steps got other answers, one each: the responses of some exchanges."""


@dataclass(frozen=True, kw_only=True)
class Preference(ABC):
    """A way to learn which trajectories to make more likely than they were before the run, and which less.

    It sees a trajectory as one number, its log-ratio r = log π(y|x) - log π_ref(y|x): the sum over every token that
    was sampled in it.

    Args:
        beta: Weight of the log-ratio in the loss: the larger, the closer to the reference.
    """

    least_examples: ClassVar[int] = 1
    """The fewest examples that it can learn from, equal ones counted once."""

    beta: Positive

    def extra_trajectories(self, batch: Sequence[Trajectory], answered: Answered) -> list[Trajectory]:
        """Return further trajectories whose log-ratios the loss asks for, without gradient; by default none."""
        return []

    @abstractmethod
    def loss(
        self,
        log_ratios: Float[Tensor, " batch"],
        batch: Sequence[Trajectory],
        extra: Float[Tensor, " extra"] | None = None,
    ) -> tuple[Float[Tensor, ""], Mapping[str, float]]:
        """Return the loss of a batch, differentiable in its log-ratios, and metrics.

        The log-ratios of `extra_trajectories` are None where there are none.
        """

    def rewards(self, log_ratios: Float[Tensor, " batch"], good: Bool[Tensor, " batch"]) -> dict[str, float]:
        """Return the mean implicit reward β r of good trajectories and of the others, where there are any."""
        rewards = self.beta * log_ratios.detach()
        sides = {"train/reward_good": rewards[good], "train/reward_bad": rewards[~good]}
        return {name: side.mean().item() for name, side in sides.items() if len(side)}
