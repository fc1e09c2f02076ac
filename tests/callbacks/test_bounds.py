"""The refusals of the callbacks' constructors, in one table."""

import pytest

from arpo.agent.prompt import Prompt
from arpo.callbacks.checkpoint import IterationCheckpoint
from arpo.callbacks.entropulse import Entropulse
from arpo.callbacks.evaluation import Evaluation
from arpo.callbacks.judge import OutcomeJudge
from arpo.callbacks.logs import TrajectoryLog, UpdateLog
from arpo.callbacks.replay import ReplayInjection
from arpo.callbacks.weight_sync import WeightSync
from arpo.errors import ConfigError
from arpo.evaluation.settings import EvaluationSettings
from arpo.methods.grpo import GRPO
from arpo.methods.ppo import PPO
from arpo.replay import ReplayBuffer

MAKE = {
    IterationCheckpoint: {"directory": "checkpoints", "every_n_iterations": 1, "keep": 1},
    Entropulse: {"buffer": ReplayBuffer(), "method": GRPO()},
    Evaluation: {"tasks": {}, "directory": "eval", "settings": EvaluationSettings()},
    OutcomeJudge: {"prompt": Prompt.compact()},
    ReplayInjection: {"buffer": ReplayBuffer()},
}


@pytest.mark.parametrize(
    ("callback", "wrong", "message"),
    [
        (IterationCheckpoint, {"every_n_iterations": 0}, "every_n_iterations must be at least 1, got 0"),
        (IterationCheckpoint, {"keep": 0}, "keep must be at least 1"),
        (Entropulse, {"share": 0.0}, "share must be above 0"),
        (Entropulse, {"share": float("nan")}, "share must be"),
        (Entropulse, {"window": 0}, "window must be at least 1"),
        (Entropulse, {"iterations": 0}, "iterations must be at least 1"),
        (Entropulse, {"method": PPO()}, "critic of PPO without a lesson"),
        (Evaluation, {"every_n_iterations": -1}, "every_n_iterations must be at least 0, got -1"),
        (OutcomeJudge, {"episodes": 0}, "episodes must be at least 1"),
        (OutcomeJudge, {"screenshots": 0}, "screenshots must be at least 1"),
        (OutcomeJudge, {"max_tokens": 0}, "max_tokens must be at least 1"),
        (ReplayInjection, {"remembers": False}, "remembers=false leaves a buffer empty that has no pool"),
        (TrajectoryLog, {"every_n_iterations": 0}, "every_n_iterations must be at least 1, got 0"),
        (UpdateLog, {"after_every_n_iterations": -1}, "after_every_n_iterations must be at least 0"),
        (WeightSync, {"tolerance": 0.0}, "tolerance must be above 0"),
    ],
)
def test_an_impossible_argument_is_refused(callback, wrong, message):
    with pytest.raises(ConfigError, match=message):
        callback(**MAKE.get(callback, {}) | wrong)
