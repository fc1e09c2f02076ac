"""The settings of an evaluation: one record for training, `evaluate.py` and task selection."""

from dataclasses import dataclass

from arpo.bounds import AtLeastOne, NotNegative, checked
from arpo.rollout.episode import EpisodeProtocol


@checked
@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """The way in which tasks are tried when a policy is judged."""

    rollouts_per_task: AtLeastOne = 1
    temperature: NotNegative = 0.6
    """Sampling temperature; 0 is greedy."""
    protocol: EpisodeProtocol = "hard"
    """The rule at the step limit."""
    seed: int = 0
    """Seeds the episodes, whatever the iteration: evaluations with one seed differ by the policy alone."""
