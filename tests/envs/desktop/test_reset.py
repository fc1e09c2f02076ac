"""A reset in place gives back a fresh desktop, whatever the episode before it did."""

import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from arpo.agent.actions import Hotkey, TypeText, Wait
from arpo.envs.desktop.env import DockerDesktop
from arpo.errors import DesktopDestroyedError, EnvError
from tests.envs.desktop.sabotage import LEAKS
from tests.envs.desktops import QUICK, needs_desktop, one_and_others, task

pytestmark = needs_desktop

ROOT = Path(__file__).parents[3]
TEXT = "yellow zebra <a> @x; {b} 'Q' \\ 12\n"
TASK = task(
    config=[{"type": "launch", "parameters": {"command": "mousepad ~/typed.txt"}}],
    windows=["typed.txt"],
    evaluator={"func": "infeasible"},
)


def new_desktop():
    return DockerDesktop(**{**QUICK, "quiet_s": 0.3, "settle_limit_s": 15.0})


@pytest.fixture(scope="module")
def fresh():
    """The first screenshot of a new container, and what it types."""
    with closing(new_desktop()) as env:
        yield first_moments(env)


@pytest.fixture(scope="module")
def desktop():
    with closing(new_desktop()) as env:
        env.reset(TASK)
        yield env


def first_moments(env):
    screen = env.reset(TASK).screenshot
    for action in (TypeText(TEXT), Hotkey(("ctrl", "s")), Wait()):
        env.step(action)
    return screen, env.machine.guest.file("~/typed.txt")


def test_a_fresh_desktop_types_what_it_is_told(fresh):
    assert fresh[1] == TEXT.encode()


def test_the_memory_of_a_display_does_not_outlive_its_reset(desktop):
    def used_kb():
        return int(desktop.guest.execute(["df", "--output=used", "-k", "/run/display"]).output.split()[1])

    desktop.reset(TASK)
    once = used_kb()
    for _ in range(6):
        desktop.reset(TASK)
    assert once / 2 < used_kb() < 2 * once


def test_no_time_that_an_owner_has_set_reaches_the_next_episode(desktop):
    guest = desktop.machine.guest
    guest.execute("touch -d 2040-01-02 ~ /run/arpo; touch -a -d 2041-03-04 ~ /run/arpo", shell=True)
    desktop.reset(TASK)
    seconds = guest.execute("stat --format '%X %Y' ~ /run/arpo", shell=True).output.split()
    assert len(seconds) == 4
    assert max(map(int, seconds)) < time.time() + 60


@pytest.mark.parametrize("leak", one_and_others(LEAKS))
def test_nothing_of_an_episode_reaches_the_next_one(desktop, fresh, leak):
    container = desktop.machine.container.id
    with suppress(DesktopDestroyedError, EnvError):  # of a way that ends the session the answer may be missing
        desktop.machine.guest.execute(LEAKS[leak], shell=True)
    assert first_moments(desktop) == fresh
    assert desktop.machine.container.id == container


def test_no_episode_of_random_sabotage_reaches_the_next_one():
    """Five of the 500 that `docs/hostile.md` tells of: up to four things at once, and resets between them."""
    command = [sys.executable, "benchmarks/sabotage.py", "--episodes", "5", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "5 of 5 episodes began as on a fresh desktop" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
