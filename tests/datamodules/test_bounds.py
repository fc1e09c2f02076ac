"""The refusals of the room's constructors, in one table."""

import pytest

from arpo.agent.prompt import Prompt
from arpo.datamodules.collecting import DemonstrationCollector
from arpo.datamodules.demonstrations import DemonstrationDataModule
from arpo.datamodules.demonstrator import Demonstrator
from arpo.datamodules.examples import every_episode
from arpo.datamodules.published import PublishedCollector
from arpo.datamodules.trajectories import TrajectoryDataModule
from arpo.errors import ConfigError

COLLECTOR = {
    "pool": None,
    "demonstrator": Demonstrator(),
    "max_steps": 4,
    "family": "qwen2_5_vl",
    "image_limits": (3136, 15680),
    "success_threshold": 0.5,
}
MAKE = {
    DemonstrationCollector: COLLECTOR,
    PublishedCollector: {name: COLLECTOR[name] for name in COLLECTOR if name not in ("pool", "demonstrator")},
    DemonstrationDataModule: {
        "collector": DemonstrationCollector(**COLLECTOR),
        "tasks": [],
        "directory": "demonstrations",
        "prompt": Prompt.compact(),
        "make_model": print,
        "model": "model",
        "per_task": 1,
        "steps": 1,
        "batch_size": 1,
    },
    TrajectoryDataModule: {"runtime": None, "source": "run", "examples": every_episode, "steps": 1, "batch_size": 1},
}


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        (Demonstrator, {"success_rate": 0.0}, "success_rate must be above 0"),
        (Demonstrator, {"success_rate": 1.1}, "success_rate must be at most 1"),
        (Demonstrator, {"habit": -0.1}, "habit must be at least 0"),
        (Demonstrator, {"habit": 1.1}, "habit must be at most 1"),
        (DemonstrationCollector, {"family": "llama"}, "family must be one of qwen2_5_vl, .* got 'llama'"),
        (DemonstrationCollector, {"max_steps": 0}, "max_steps must be at least 1"),
        (DemonstrationCollector, {"image_limits": (0, 5)}, "image_limits must be at least 1"),
        (DemonstrationCollector, {"image_limits": (6, 5)}, "most_pixels must be at least 6, got 5"),
        (DemonstrationCollector, {"success_threshold": 1.0}, "success_threshold must be below 1"),
        (PublishedCollector, {"image_limits": (6, 5)}, "most_pixels must be at least 6, got 5"),
        (DemonstrationDataModule, {"arrival": 1.5}, "arrival must be at most 1, got 1.5"),
        (DemonstrationDataModule, {"click_jitter": -1.0}, "click_jitter must be at least 0"),
        (DemonstrationDataModule, {"per_task": 0}, "per_task must be at least 1"),
        (DemonstrationDataModule, {"steps": 0}, "steps must be at least 1"),
        (DemonstrationDataModule, {"batch_size": 0}, "batch_size must be at least 1"),
        (TrajectoryDataModule, {"steps": 0}, "steps must be at least 1, got 0"),
        (TrajectoryDataModule, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (TrajectoryDataModule, {"first": 0}, "first must be at least 1, got 0"),
        (TrajectoryDataModule, {"outcomes": ["solved"]}, "outcomes must be among finished, gave_up, .*, got solved"),
    ],
)
def test_an_impossible_argument_is_refused(make, wrong, message):
    with pytest.raises(ConfigError, match=message):
        make(**MAKE.get(make, {}) | wrong)
