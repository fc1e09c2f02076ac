"""A flood of connections without the secret, from the host or a neighbour, takes no desktop from its episode."""

import json

import pytest

from arpo.agent.actions import Wait
from arpo.envs.desktop.env import GUEST_PORT, DockerDesktop
from tests.envs.desktop.floods import FLOODS, flood
from tests.envs.desktops import QUICK, docker, editor_task, needs_desktop

pytestmark = needs_desktop

STEPS = 4


@pytest.fixture(scope="module")
def desktop():
    env = DockerDesktop(**QUICK)
    yield env
    env.close()


def doors(env):
    """The port of this machine that leads to a desktop, and the desktop's own as a neighbour sees it."""
    container = env._machine.container
    (found,) = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", container.id)).values()
    return {"host": ("127.0.0.1", container.port(GUEST_PORT)), "neighbour": (found["IPAddress"], GUEST_PORT)}


@pytest.mark.parametrize("origin", ["host", "neighbour"])
@pytest.mark.parametrize("kind", FLOODS)
def test_an_episode_goes_on_under_a_flood_and_so_does_the_next_one(desktop, kind, origin):
    desktop.reset(editor_task())
    container = desktop._machine.container.id
    with flood(doors(desktop)[origin], kind):
        for _ in range(STEPS):
            desktop.step(Wait())
            assert desktop.evaluate() == 0.0
        desktop.reset(editor_task())
        desktop.step(Wait())
    for action in desktop.solve():
        desktop.step(action)
    assert desktop.evaluate() == 1.0
    assert desktop._machine.container.id == container
