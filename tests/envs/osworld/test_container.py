"""OSWorld's own tasks in a container of our image: set up and graded by OSWorld's code, solved by keyboard alone."""

import os
import time
import urllib.request

import pytest

from arpo.agent.actions import Fail, Finished, Hotkey, Press, TypeText
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.machine import CHROMIUM_PORT, VLC_PORT, container
from arpo.envs.osworld.tasks import read_tasks
from tests.envs.desktops import FULL, needs_full
from tests.envs.osworld.test_grader import PYTHON, needs_graders

TASKS = os.environ.get("ARPO_OSWORLD_TASKS")
pytestmark = [
    *needs_full,
    needs_graders,
    pytest.mark.long,
    pytest.mark.skipif(TASKS is None, reason="set ARPO_OSWORLD_TASKS to OSWorld's evaluation_examples"),
]

TYPED = {
    "e0df059f-28a6-4169-924f-b9623e7184cc": "mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2",
    "a4d98375-215b-4a4d-aee9-3d4370fccc41": "gsettings set org.gnome.desktop.screensaver lock-enabled true",
    "f9be0997-4b7c-45c5-b05c-4612b44a6118": "gsettings set org.gnome.desktop.notifications show-banners false",
    "ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3": (
        "gsettings set org.gnome.shell favorite-apps \"['thunderbird.desktop', 'google-chrome.desktop']\""
    ),
    "b6781586-6346-41cd-935a-a6b1487918fc": "timedatectl set-timezone Etc/UTC",
}
"""What a person would type into a terminal, by task."""

SOLVED_ELSEWHERE = [
    ("multi_apps", "937087b6-f668-4ba6-9110-60682ee33441"),  # the default video player
    ("os", "28cc3b7e-b194-4bc9-8353-d04c0f4d56d2"),  # the volume
]


def task(domain, name):
    (found,) = read_tasks(TASKS, {domain: [name]})
    return found


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    env = OSWorldEnv(
        container(FULL), cache=tmp_path_factory.mktemp("cache"), grader_python=PYTHON, guarded=True, boot_timeout_s=120
    )
    yield env
    env.close()


def in_a_terminal(env, command):
    env.step(Hotkey(("ctrl", "alt", "t")))
    has_the_keyboard = ["xdotool", "getactivewindow", "getwindowname"]
    deadline = time.monotonic() + 30
    while "Terminal" not in env._machine.guest.execute(has_the_keyboard).output:
        assert time.monotonic() < deadline
    env.step(TypeText(command))
    env.step(Press("enter"))


@pytest.mark.parametrize("name", TYPED)
def test_a_task_scores_0_when_nothing_is_done_and_1_when_it_is_solved(env, name):
    for solution, score in (((), 0.0), ((TYPED[name],), 1.0)):
        env.reset(task("os", name))
        for command in solution:
            in_a_terminal(env, command)
        env.step(Finished())
        assert env.evaluate() == score, solution


@pytest.mark.parametrize(("domain", "name"), SOLVED_ELSEWHERE)
def test_a_task_that_a_bare_image_has_solved_already_begins_unsolved(env, domain, name):
    env.reset(task(domain, name))
    env.step(Finished())
    assert env.evaluate() == 0.0


def test_an_infeasible_task_is_solved_by_giving_up_alone(env):
    wanted = task("os", "c288e301-e626-4b98-a1ab-159dcb162af5")
    for last, score in ((Finished(), 0.0), (Fail(), 1.0)):
        env.reset(wanted)
        env.step(last)
        assert env.evaluate() == score


def test_programs_answer_this_machine_on_the_ports_of_chrome_and_vlc_and_reach_nothing(env):
    env.reset(task("os", "e0df059f-28a6-4169-924f-b9623e7184cc"))
    guest = env._machine.guest
    for port in (CHROMIUM_PORT, VLC_PORT, 9999):
        guest.launch(["python3", "-m", "http.server", str(port)])
    for port in (CHROMIUM_PORT, VLC_PORT):
        assert answer(env._machine.address(port)) == 200
    program = "import socket; socket.create_connection(('{}', 5000), timeout=3)"
    for host in ("127.0.0.1", "172.17.0.1"):
        assert guest.execute(["python3", "-c", program.format(host)], timeout_s=20).returncode != 0


def answer(address):
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as response:
                return response.status
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
