"""What an agent does to its own desktop is its own doing: judged, scored with 0, and never tried again."""

import time

import pytest

from arpo.agent.actions import Wait
from arpo.errors import DesktopDestroyedError
from tests.envs.desktop.sabotage import DESTROYS, LEAVES_NO_PROCESS, OUTLIVED
from tests.envs.desktops import editor_task, needs_desktop, one_and_others

pytestmark = needs_desktop

STRIKES_S = 30.0  # for so long a way to destroy a desktop may take until the first call that notices
ACTS_S = 3.0  # for so long a desktop is judged again and again, while something is done to it


def launch(env, command):
    env.machine.guest.launch(["sh", "-c", command])


def play_on(env):
    until = time.monotonic() + STRIKES_S
    while time.monotonic() < until:
        env.step(Wait())
        env.evaluate()
    raise AssertionError("nothing was noticed")


@pytest.mark.parametrize("way", one_and_others(DESTROYS))
def test_a_desktop_that_its_agent_destroys_is_the_agents_and_the_next_reset_repairs_it(desktop, way):
    desktop.reset(editor_task())
    container = desktop.machine.container.id
    launch(desktop, DESTROYS[way])
    with pytest.raises(DesktopDestroyedError):
        play_on(desktop)
    desktop.reset(editor_task())
    assert desktop.machine.container.id == container
    desktop.step(Wait())
    assert desktop.evaluate() == 0.0


@pytest.mark.parametrize("way", one_and_others(OUTLIVED))
def test_what_does_not_destroy_a_desktop_does_not_keep_it_from_being_judged(desktop, way):
    desktop.reset(shown_task())
    launch(desktop, OUTLIVED[way])
    until = time.monotonic() + ACTS_S
    while time.monotonic() < until:
        desktop.step(Wait())
        assert desktop.evaluate() == 0.0


@pytest.mark.long
def test_a_check_that_gets_no_process_ends_in_a_desktop_that_its_agent_destroyed(desktop):
    desktop.reset(shown_task())
    launch(desktop, LEAVES_NO_PROCESS)
    with pytest.raises(DesktopDestroyedError, match="as many processes as it may have"):
        play_on(desktop)


def shown_task():
    task = editor_task()
    of_file = task.config["evaluator"]
    save = "import pyautogui; pyautogui.hotkey('ctrl', 's')"
    task.config["evaluator"] = {
        "func": [of_file["func"]] * 2,
        "conj": "or",
        "result": [of_file["result"], {"type": "vm_command_line", "command": "cat ~/list.txt", "shell": True}],
        "expected": [of_file["expected"]] * 2,
        "postconfig": [
            {"type": "activate_window", "parameters": {"window_name": "list.txt"}},
            {"type": "execute", "parameters": {"command": ["python3", "-c", save]}},
        ],
    }
    return task
