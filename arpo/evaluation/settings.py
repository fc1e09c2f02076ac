"""The settings of an evaluation: one record for training, `evaluate.py` and task selection."""

from dataclasses import dataclass
from math import inf

from arpo.errors import ConfigError, check_at_least, check_one_of
from arpo.rollout.episode import EpisodeProtocol


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The way in which tasks are tried when a policy is judged."""

    rollouts_per_task: int = 1
    """Episodes of each task."""
    temperature: float = 0.6
    """Sampling temperature; 0 is greedy."""
    protocol: EpisodeProtocol = "hard"
    """The rule at the step limit."""
    seed: int = 0
    """Seeds the episodes, whatever the iteration: evaluations with one seed differ by the policy alone."""

    def __post_init__(self) -> None:
        check_at_least(1, rollouts_per_task=self.rollouts_per_task)
        if not 0 <= self.temperature < inf:
            raise ConfigError(f"temperature must be finite and not negative, got {self.temperature}; 0 is greedy")
        check_one_of(EpisodeProtocol, protocol=self.protocol)
