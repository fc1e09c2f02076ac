"""A flood of connections without the secret, from the host or a neighbour, takes no desktop from its episode."""

import json
import socket
from contextlib import ExitStack

import pytest

from arpo.agent.actions import Wait
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.guest.client import poll_until
from arpo.envs.guest.image import GUEST_PORT
from tests.envs.desktop.floods import FLOODS, flood
from tests.envs.desktops import QUICK, docker, editor_task, needs_desktop, one_and_others

pytestmark = needs_desktop

STEPS = 4


def doors(env):
    """The port of this machine that leads to a desktop, and the desktop's own as a neighbour sees it."""
    container = env.machine.container
    (found,) = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", container.id)).values()
    return {"host": ("127.0.0.1", container.port(GUEST_PORT)), "neighbour": (found["IPAddress"], GUEST_PORT)}


CALLS_FROM_INSIDE = """
import socket, threading
def call(host):
    while True:
        try:
            with socket.create_connection((host, 5000), timeout=0.2) as connection:
                connection.send(b"GET /screenshot HTTP/1.1\\r\\n")
        except OSError:
            pass
for host in ("127.0.0.1", "127.1.2.3", "desktop", socket.gethostbyname(socket.gethostname())):
    for _ in range(8):
        threading.Thread(target=call, args=(host,)).start()
"""


@pytest.mark.parametrize("network", ["closed", "open"])
def test_an_agent_that_floods_its_own_desktop_is_judged_as_ever(network):
    env = DockerDesktop(**QUICK, network=network)
    try:
        env.reset(editor_task())
        env.machine.guest.launch(["python3", "-c", CALLS_FROM_INSIDE])
        for _ in range(STEPS):
            env.step(Wait())
            assert env.evaluate() == 0.0
        env.machine.guest.execute("pkill python3", shell=True)
        for action in env.solve():
            env.step(action)
        assert env.evaluate() == 1.0
    finally:
        env.close()


@pytest.mark.parametrize("origin", ["host", "neighbour"])
@pytest.mark.parametrize("kind", one_and_others(FLOODS))
def test_an_episode_goes_on_under_a_flood_and_so_does_the_next_one(desktop, kind, origin):
    desktop.reset(editor_task())
    container = desktop.machine.container.id
    with flood(doors(desktop)[origin], kind):
        for _ in range(STEPS):
            desktop.step(Wait())
            assert desktop.evaluate() == 0.0
        desktop.reset(editor_task())
        desktop.step(Wait())
    for action in desktop.solve():
        desktop.step(action)
    assert desktop.evaluate() == 1.0
    assert desktop.machine.container.id == container


def ask(connection, secret):
    """The status line of an answer; empty where the desktop has hung up."""
    head = f"GET /platform HTTP/1.1\r\nHost: desktop\r\nAuthorization: Bearer {secret}\r\n\r\n"
    connection.sendall(head.encode())
    return connection.recv(65536).partition(b"\r\n")[0].decode()


def test_who_shows_the_secret_in_vain_is_refused_while_all_places_are_taken_and_served_after(desktop):
    desktop.reset(editor_task())
    door, secret = doors(desktop)["neighbour"], desktop.machine.secret
    said = []
    with ExitStack() as held:
        while not said or said[-1] == "HTTP/1.1 200 OK":
            connection = held.enter_context(socket.create_connection(door, timeout=20))
            said.append(ask(connection, secret))
    assert said[-1] == "HTTP/1.1 503 Service Unavailable"
    assert 32 < len(said) <= 65  # the environment has one or two connections of its own
    assert poll_until(lambda: serves(door, secret), 20)
    desktop.step(Wait())
    assert desktop.evaluate() == 0.0


def serves(door, secret):
    with socket.create_connection(door, timeout=20) as connection:
        return ask(connection, secret) == "HTTP/1.1 200 OK"


def test_a_connection_that_says_nothing_is_hung_up_and_one_that_has_shown_the_secret_is_asked_again(desktop):
    desktop.reset(editor_task())
    door, secret = doors(desktop)["neighbour"], desktop.machine.secret
    with socket.create_connection(door, timeout=60) as silent, socket.create_connection(door, timeout=60) as known:
        assert ask(known, secret) == "HTTP/1.1 200 OK"
        assert silent.recv(1) == b""
        assert ask(known, secret) == "HTTP/1.1 200 OK"
        assert ask(known, "0" * 32) == "HTTP/1.1 401 Unauthorized"
        assert known.recv(1) == b""
