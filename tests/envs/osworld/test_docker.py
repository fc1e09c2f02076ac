"""OSWorld's way from end to end without OSWorld's machine: in a real desktop, and graded by its own code."""

import pytest

from arpo.agent.actions import Fail, Finished, Hotkey, TypeText
from arpo.envs.guest.image import CAPABILITIES, scratch
from arpo.envs.osworld.env import OSWorldEnv
from arpo.host.container_spec import ContainerSpec
from arpo.types import Task
from tests.envs.desktops import IMAGE, needs_desktop
from tests.envs.osworld.guest import HOME
from tests.envs.osworld.support import PYTHON, needs_graders, rule, vm_file

pytestmark = [*needs_desktop, needs_graders]

DESKTOP = ContainerSpec(
    image=IMAGE,
    ports=(5000, 9222, 8080),
    environment={"ARPO_SCREEN": "640x480x24", "ARPO_NETWORK": "closed"},
    capabilities=CAPABILITIES,
    memory_mb=768,
    scratch=scratch(64),
)
LIST = f"{HOME}/list.txt"


@pytest.fixture
def env(tmp_path):
    env = OSWorldEnv(DESKTOP, cache=tmp_path / "cache", grader_python=PYTHON, pause_s=0.5, boot_timeout_s=60)
    yield env
    env.close()


def shopping(web):
    web.web = {"/web/list.txt": b"bread\n", "/web/gold.txt": b"bread\nmilk\n"}
    config = [
        {"type": "download", "parameters": {"files": [{"url": f"{web.address}/web/list.txt", "path": LIST}]}},
        {"type": "launch", "parameters": {"command": ["mousepad", LIST]}},
        {"type": "sleep", "parameters": {"seconds": 3}},
        {"type": "activate_window", "parameters": {"window_name": "list.txt", "strict": False}},
    ]
    evaluator = {
        "postconfig": [{"type": "sleep", "parameters": {"seconds": 0.5}}],
        "func": ["compare_text_file", "check_include_exclude"],
        "result": [vm_file("list.txt"), {"type": "vm_command_line", "command": ["cat", LIST]}],
        "expected": [
            {"type": "cloud_file", "path": f"{web.address}/web/gold.txt", "dest": "gold.txt"},
            rule(include=["milk"], exclude=["error"]),
        ],
    }
    return Task("shopping", "Add milk and save.", "os", {"config": config, "evaluator": evaluator})


def test_a_task_is_set_up_solved_and_graded_and_the_next_episode_begins_anew(env, guest):
    task = shopping(guest)
    first = env.reset(task)
    assert (first.width, first.height) == (640, 480)
    env.step(Hotkey(("ctrl", "end")))
    env.step(TypeText("milk\n"))
    last = env.step(Hotkey(("ctrl", "s")))
    assert last.observation != first
    env.step(Finished())
    assert env.evaluate() == 1.0
    env.reset(task)
    assert env.evaluate() == 0.0
    env.reset(task)
    env.step(Fail())
    assert env.evaluate() == 0.0
