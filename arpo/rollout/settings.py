"""The numbers of a rollout, checked before any machine starts."""

from dataclasses import dataclass
from typing import Literal

from arpo.bounds import AtLeastOne, NotNegativeInt, Positive, Threshold, checked
from arpo.errors import ConfigError

Order = Literal["submitted", "finished"]
"""`submitted`: an iteration learns from the groups in the order in which they were asked for. `finished`: from those
that ended first, and from those that would be stale at the next iteration, for which it waits."""
MAX_ACTIONS = 15
"""Actions that ARPO's code performs in a whole episode, since it counts them and not responses. The longest answer in
the tests of UI-TARS-desktop's parser has six."""


@checked
@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """The numbers of a rollout."""

    group_size: AtLeastOne
    max_steps: AtLeastOne
    """Responses an episode, where the task or the request does not say otherwise."""
    max_tokens: AtLeastOne
    """Tokens of one response."""
    max_context: int
    """Tokens of a whole conversation; not above what the engine takes."""
    temperature: Positive = 1.0
    """0 would make all members of a group equal."""
    image_window: AtLeastOne | None = None
    """Screenshots that a response sees, its own among them; None: all of the episode. A window makes every step a
    training sequence of its own (DART, arXiv 2509.23866), None makes one of every episode (ARPO)."""
    max_actions: AtLeastOne = MAX_ACTIONS
    """Actions of one response; one with more is a format error, and none of them is performed."""
    min_group_size: AtLeastOne = 2
    """A group with fewer trajectories is dropped: an advantage needs something to compare with."""
    max_attempts: AtLeastOne = 3
    """Attempts at an episode that the infrastructure loses."""
    max_policy_lag: NotNegativeInt = 0
    """A group is stale when its oldest step is more policy versions behind than this."""
    order: Order = "submitted"
    stall_s: Positive = 900.0
    """Seconds without a sign of life of any episode after which a wait for one ends with an error. Above every
    deadline of an environment, every response and every weight update."""
    success_threshold: Threshold = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
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
