"""Arguments of environments that cannot be: each is refused by its name before anything starts."""

from functools import partial

import pytest

from arpo.agent.matching import StepScore
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.guest.client import Deadlines
from arpo.envs.miniwob.env import MiniWobEnv
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.machine import container, virtual_machine
from arpo.envs.pool.pool import EnvPool
from arpo.envs.recorded import RecordedDesktop
from arpo.errors import ConfigError
from arpo.host.container_spec import ContainerSpec

SPEC = partial(ContainerSpec, "image", (5000,))
MACHINE = partial(virtual_machine, image="osworld")
OSWORLD = partial(OSWorldEnv, SPEC(), cache="cache", grader_python="python")
RECORDED = partial(RecordedDesktop, StepScore())
REFUSED = [
    (FakeDesktop, {"width": 10}, "must be at least 64x48, got 10x84"),
    (fake_tasks, {"count": -1}, "count must be at least 0, got -1"),
    (fake_tasks, {"count": 1, "kinds": ("swim",)}, "kinds must"),
    (fake_tasks, {"count": 1, "kinds": ()}, "kinds must be some of click"),
    (RECORDED, {"patches": -1}, "patches must be at least 0"),
    (RECORDED, {"tolerance": -1.0}, "tolerance must be at least 0"),
    (RECORDED, {"thought": "on_policy"}, "thought must be 'free' or 'recorded'"),
    (MiniWobEnv, {"viewport": (150, 210)}, "viewport must be at least"),
    (MiniWobEnv, {"screen": (160, 210)}, "needs a screen"),
    (MiniWobEnv, {"scale": 2.0}, "needs a screen"),
    (MiniWobEnv, {"scale": 0.0}, "scale must be above 0"),
    (MiniWobEnv, {"renderers": 0}, "renderers must be at least 1"),
    (MiniWobEnv, {"step_timeout_s": 0.0}, "step_timeout_s must be above 0, got 0.0"),
    (MiniWobEnv, {"executable": "no-such-browser"}, "apt-get install"),
    *((EnvPool, {"make_env": FakeDesktop, "size": 1, name: 0}, name) for name in ("size", "envs_per_worker")),
    *((EnvPool, {"make_env": FakeDesktop, "size": 1, name: 0}, name) for name in ("recycle_after", "slow_step_s")),
    (EnvPool, {"make_env": FakeDesktop, "size": 1, "step_timeout_s": 0}, "step_timeout_s must be above 0"),
    (EnvPool, {"make_env": FakeDesktop, "size": 1, "backend": "rocket"}, "backend must be 'ray', 'thread' .*'rocket'"),
    *(
        (Deadlines, {name: -1.0}, f"{name} must be")
        for name in ("start_s", "call_s", "program_s", "open_s", "window_s")
    ),
    (MACHINE, {"disk": None}, "set ARPO_OSWORLD_DISK"),
    (MACHINE, {"disk": "a", "cores": 0}, "cores must be at least 1, got 0"),
    (MACHINE, {"disk": "a", "memory_mb": -600}, "memory_mb must be at least 1"),
    (partial(container, "image"), {"disk_mb": 0}, "disk_mb must be at least 1"),
    (OSWORLD, {"pause_s": -1}, "pause_s must be at least 0, got -1"),
    (OSWORLD, {"grading_timeout_s": 0}, "grading_timeout_s must be above 0"),
    (DockerDesktop, {"reset": "never"}, "reset must be 'in_place', 'restart' or 'fresh'"),
    (DockerDesktop, {"network": "half"}, "network must be 'closed' or 'open'"),
    (DockerDesktop, {"memory_mb": 0}, "memory_mb must be at least 1"),
    (SPEC, {"memory_mb": 0}, "memory_mb must be at least 1, got 0"),
    (SPEC, {"cpus": 0.0}, "cpus must be above 0"),
]


@pytest.mark.parametrize(("build", "arguments", "sentence"), REFUSED)
def test_an_argument_that_cannot_be_is_refused_by_name(build, arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build(**arguments)
