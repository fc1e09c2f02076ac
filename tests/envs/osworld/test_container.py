"""OSWorld's own tasks in a container of our image: set up and graded by OSWorld's code, solved through the GUI."""

import json
import os
import urllib.request
from dataclasses import replace
from functools import partial

import pytest
import tenacity

from arpo.agent.actions import Fail, Finished
from arpo.apps.certify import ROOT
from arpo.envs.guest.certificate import certify, holds, play, read_scripts
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.machine import CHROMIUM_PORT, VLC_PORT, container
from arpo.envs.osworld.tasks import read_tasks
from tests.envs.desktops import FULL, needs_full
from tests.envs.osworld.support import PYTHON, needs_graders

TASKS = os.environ.get("ARPO_OSWORLD_TASKS")
pytestmark = [
    *needs_full,
    needs_graders,
    pytest.mark.long,
    pytest.mark.skipif(TASKS is None, reason="set ARPO_OSWORLD_TASKS to OSWorld's evaluation_examples"),
]

ANY = "e0df059f-28a6-4169-924f-b9623e7184cc"
SOLVED_ELSEWHERE = [
    ("multi_apps", "937087b6-f668-4ba6-9110-60682ee33441"),  # the default video player
    ("os", "28cc3b7e-b194-4bc9-8353-d04c0f4d56d2"),  # the volume
]


def task(domain, name):
    (found,) = read_tasks(TASKS, {domain: [name]})
    return found


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    env = OSWorldEnv(container(FULL), cache=cache, grader_python=PYTHON, guarded=True, boot_timeout_s=120)
    yield env
    env.close()


@pytest.mark.parametrize("path", sorted(ROOT.glob("*/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem[:8]}")
def test_a_certified_task_is_solved_by_its_script_and_by_nothing_less(env, path):
    scripts = replace(read_scripts(json.loads(path.read_text(encoding="utf-8"))), attacks=None)
    found = certify(partial(play, env), task(path.parent.name, path.stem), scripts, repeats=1)
    assert holds(found), found


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


def test_the_wallpaper_is_what_the_settings_say(env):
    env.reset(task("os", ANY))
    guest = env._machine.guest
    assert guest._post("/wallpaper", {})[8:12] == b"WEBP"  # a picture, before anybody chooses one
    guest.upload("/home/user/My picture.png", b"a picture")
    setting = ["gsettings", "set", "org.gnome.desktop.background", "picture-uri", "file:///home/user/My%20picture.png"]
    assert guest.execute(setting).returncode == 0
    assert guest._post("/wallpaper", {}) == b"a picture"


def test_a_folder_is_opened_and_its_program_holds_nothing(env):
    env.reset(task("os", ANY))
    guest = env._machine.guest
    assert guest.execute("xdg-open ~/Documents", shell=True, timeout_s=20).returncode == 0
    guest.wait_for(lambda: any("Documents" in title for title in guest.titles()), "the folder's window")


def test_a_program_that_asks_for_sound_starts_its_server(env):
    env.reset(task("os", ANY))
    assert "speakers" in env._machine.guest.execute("pactl list short sinks", shell=True, timeout_s=20).output


def test_programs_answer_this_machine_on_the_ports_of_chrome_and_vlc_and_reach_nothing(env):
    env.reset(task("os", ANY))
    guest = env._machine.guest
    for port in (CHROMIUM_PORT, VLC_PORT, 9999):
        guest.launch(["python3", "-m", "http.server", str(port)])
    for port in (CHROMIUM_PORT, VLC_PORT):
        assert answer(env._machine.address(port)) == 200
    program = "import socket; socket.create_connection(('{}', 5000), timeout=3)"
    for host in ("127.0.0.1", "172.17.0.1"):
        assert guest.execute(["python3", "-c", program.format(host)], timeout_s=20).returncode != 0


@tenacity.retry(stop=tenacity.stop_after_delay(30), wait=tenacity.wait_fixed(0.1), reraise=True)
def answer(address):
    with urllib.request.urlopen(address, timeout=5) as response:
        return response.status
