"""The numbers of a rollout, checked before any machine starts."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from arpo.errors import ConfigError, check_at_least, check_one_of, check_positive, check_threshold

Order = Literal["submitted", "finished"]
"""`submitted`: an iteration learns from the groups in the order in which they were asked for. `finished`: from those
that ended first, and from those that would be stale at the next iteration, for which it waits."""
MAX_ACTIONS = 15
"""Actions that ARPO's code performs in a whole episode, since it counts them and not responses. The longest answer in
the tests of UI-TARS-desktop's parser has six."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """The numbers of a rollout."""

    group_size: int
    max_steps: int
    """Responses an episode, where the task or the request does not say otherwise."""
    max_tokens: int
    """Tokens of one response."""
    max_context: int
    """Tokens of a whole conversation; not above what the engine takes."""
    temperature: float = 1.0
    image_window: int | None = None
    """Screenshots that a response sees, its own among them; None: all of the episode. A window makes every step a
    training sequence of its own (DART, arXiv 2509.23866), None makes one of every episode (ARPO)."""
    max_actions: int = MAX_ACTIONS
    """Actions of one response; one with more is a format error, and none of them is performed. A hundred `wait()`
    would be one step of many minutes; a policy should not learn that a part of its words counts."""
    min_group_size: int = 2
    """A group with fewer trajectories is dropped: an advantage needs something to compare with."""
    max_attempts: int = 3
    """Attempts at an episode that the infrastructure loses."""
    max_policy_lag: int = 0
    """A group is stale when its oldest step is more policy versions behind than this."""
    order: Order = "submitted"
    """The groups that an iteration learns from."""
    stall_s: float = 900.0
    """Seconds without a sign of life of any episode after which whoever waits for one gives up, with an error that
    says who waits for whom. Above every deadline of an environment, every response and every weight update."""
    success_threshold: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, group_size=self.group_size, max_steps=self.max_steps, max_tokens=self.max_tokens)
        check_at_least(
            1, min_group_size=self.min_group_size, max_attempts=self.max_attempts, max_actions=self.max_actions
        )
        check_positive(stall_s=self.stall_s)
        check_threshold(success_threshold=self.success_threshold)
        check_one_of(Order, order=self.order)
        if self.min_group_size > self.group_size:
            raise ConfigError(
                f"min_group_size={self.min_group_size} is above group_size={self.group_size}: every "
                "group would be dropped; lower it or raise the group size"
            )
        if self.max_context <= self.max_tokens:
            raise ConfigError(
                f"max_context={self.max_context} must be above max_tokens={self.max_tokens}, because "
                "it holds the prompts and screenshots too"
            )
        if self.image_window is not None:
            check_at_least(1, image_window=self.image_window)
        if not 0 < self.temperature < inf:
            raise ConfigError(
                f"temperature must be above 0 and finite, got {self.temperature}: greedy members of a group are all "
                "equal"
            )
        if not 0 <= self.max_policy_lag < inf:
            raise ConfigError(f"max_policy_lag must be finite and not negative, got {self.max_policy_lag}")
