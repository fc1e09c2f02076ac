"""The settings of an evaluation: one record for training, `evaluate.py` and task selection."""

from dataclasses import dataclass
from typing import get_args

from arpo.errors import ConfigError
from arpo.rollout.episode import EpisodeProtocol


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The way in which tasks are tried when a policy is judged.

    Raises:
        ConfigError: If a value is not one of those that are allowed.
    """

    rollouts_per_task: int = 1
    """Episodes of each task."""
    temperature: float = 0.6
    """Sampling temperature; 0 is greedy."""
    protocol: EpisodeProtocol = "hard"
    """The rule at the step limit."""
    seed: int = 0
    """Seeds the episodes, whatever the iteration: evaluations with one seed differ by the policy alone."""

    def __post_init__(self) -> None:
        if self.rollouts_per_task < 1:
            raise ConfigError(f"rollouts_per_task must be at least 1, got {self.rollouts_per_task}")
        if self.temperature < 0:
            raise ConfigError(f"temperature must not be negative, got {self.temperature}; 0 is greedy")
        if self.protocol not in get_args(EpisodeProtocol):
            raise ConfigError(f"protocol must be one of {', '.join(get_args(EpisodeProtocol))}, got {self.protocol!r}")
