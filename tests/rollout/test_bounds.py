"""The refusals of the room's constructors, in one table."""

import pytest

from arpo.errors import ConfigError
from arpo.methods.distillation import Distillation
from arpo.methods.grpo import GRPO
from arpo.methods.ppo import PPO
from arpo.rollout.curation.buffers import AdaptiveBuffer, RelevanceBuffer
from arpo.rollout.curation.curricula import FailureCurriculum, StagedCurriculum
from arpo.rollout.curation.requests import DynamicRolloutNumber, DynamicTrajectoryLength
from arpo.rollout.recorded import recorded_tasks
from arpo.rollout.sampler import ShuffledTasks, TaskStatistics
from arpo.rollout.settings import RolloutSettings
from arpo.types import Task

TASKS = {"tasks": [Task(str(number), "") for number in range(5)], "tasks_per_iteration": 1, "seed": 0}
MAKE = {
    RolloutSettings: {"group_size": 4, "max_steps": 4, "max_tokens": 40, "max_context": 2000},
    AdaptiveBuffer: {"method": GRPO()},
    ShuffledTasks: TASKS,
    FailureCurriculum: TASKS,
    StagedCurriculum: TASKS,
    DynamicRolloutNumber: {"group_size": 8},
    DynamicTrajectoryLength: {"limit": 30},
    recorded_tasks: {"source": "nowhere"},
}


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (RolloutSettings, {"group_size": 0}, "group_size must be at least 1, got 0"),
        (RolloutSettings, {"min_group_size": 5}, "min_group_size=5 is above group_size=4"),
        (RolloutSettings, {"max_context": 40}, "max_context=40 must be above max_tokens=40"),
        (RolloutSettings, {"temperature": 0.0}, "temperature must be above 0"),
        (RolloutSettings, {"success_threshold": 1.0}, "success_threshold must be below 1, got 1.0"),
        (RolloutSettings, {"stall_s": 0.0}, "stall_s must be above 0, got 0"),
        (RolloutSettings, {"max_policy_lag": -1}, "max_policy_lag must be at least 0, got -1"),
        (RolloutSettings, {"max_attempts": 0}, "max_attempts must be at least 1"),
        (RolloutSettings, {"max_actions": 0}, "max_actions must be at least 1"),
        (RolloutSettings, {"image_window": 0}, "image_window must be at least 1, got 0"),
        (RolloutSettings, {"order": "first"}, "order must be 'submitted' or 'finished', got 'first'"),
        (AdaptiveBuffer, {"share": 0.0}, "share must be above 0"),
        (AdaptiveBuffer, {"share": 1.1}, "share must be at most 1"),
        (AdaptiveBuffer, {"replayed": 1.0}, "replayed must be below 1"),
        (AdaptiveBuffer, {"method": PPO()}, "those of PPO need a critic or a teacher"),
        (AdaptiveBuffer, {"method": Distillation()}, "those of Distillation need a critic or a teacher"),
        (RelevanceBuffer, {"temperature": 0.0}, "temperature must be above 0"),
        (ShuffledTasks, {"tasks_per_iteration": 0}, "tasks_per_iteration must be at least 1"),
        (ShuffledTasks, {"tasks": []}, "the task list is empty"),
        (ShuffledTasks, {"tasks": [Task("a", ""), Task("a", "")]}, "stand twice in the list: a"),
        (FailureCurriculum, {"patience": 0}, "patience must be at least 1"),
        (FailureCurriculum, {"cooldown": 0}, "cooldown must be at least 1"),
        (StagedCurriculum, {"stages": 0}, "stages must be at least 1"),
        (StagedCurriculum, {"stages": 6}, "stages=6 are more than the 5 tasks"),
        (StagedCurriculum, {"stage_iterations": 0}, "stage_iterations must be at least 1"),
        (StagedCurriculum, {"threshold": 0.0}, "threshold must be above 0"),
        (StagedCurriculum, {"threshold": 1.1}, "threshold must be at most 1"),
        (DynamicRolloutNumber, {"group_size": 1}, "group_size must be at least 2, got 1"),
        (DynamicRolloutNumber, {"threshold": 0.0}, "threshold must be above 0"),
        (DynamicRolloutNumber, {"threshold": 1.1}, "threshold must be at most 1, got 1.1"),
        (DynamicTrajectoryLength, {"limit": 0}, "limit must be at least 1, got 0"),
        (DynamicTrajectoryLength, {"floor": 0}, "floor must be at least 1, got 0"),
        (DynamicTrajectoryLength, {"slack": -1}, "slack must be at least 0, got -1"),
        (TaskStatistics, {"window": 0}, "window must be at least 1"),
        (recorded_tasks, {"part": "all"}, "part must be 'train' or 'held_out', got 'all'"),
        (recorded_tasks, {"count": 0}, "count must be at least 1"),
        (recorded_tasks, {"success_threshold": 1.0}, "success_threshold must be below 1"),
    ],
)
def test_an_impossible_argument_is_refused(make, wrong, message):
    with pytest.raises(ConfigError, match=message):
        make(**MAKE.get(make, {}) | wrong)
