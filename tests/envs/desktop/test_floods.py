"""A flood of connections without the secret, from the host or a neighbour, takes no desktop from its episode."""

import errno
import json
import socket
import struct
import threading
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, count, repeat

import pytest

from arpo.agent.actions import Wait
from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.guest.client import poll_until
from arpo.envs.guest.image import GUEST_PORT
from tests.envs.desktops import QUICK, docker, editor_task, needs_desktop, one_and_others

pytestmark = needs_desktop

STEPS = 4
CONNECTIONS = 700  # more than a desktop may have processes, and threads
PAUSE_S = 0.1  # between two rounds of a flood that goes on: it is to be wide, and this machine is the victim's too
HEAD = b"POST /setup/upload HTTP/1.1\r\nHost: desktop\r\n"
BODY = b"a" * 65536
WRONG_SECRET = HEAD + b"Authorization: Bearer %032x\r\nContent-Length: 0\r\n\r\n"
HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
ODD_HEAD = b"\r\n\r\n\xff\xfe \x00 Authorization:\r\nAuthorization: Bearer \xff\r\n: \r\n\r\n"
FLOODS = {
    "silence": lambda number: repeat(b""),
    "headers that drip": lambda number: chain([HEAD + b"X-"], repeat(b"a")),
    "headers without end": lambda number: chain([HEAD], (b"X-%d: a\r\n" % line for line in count())),
    "one header without end": lambda number: chain([HEAD + b"X: "], repeat(BODY)),
    "bodies": lambda number: chain([HEAD + b"Content-Length: 268435456\r\n\r\n"], repeat(BODY)),
    "a wrong secret": lambda number: repeat(WRONG_SECRET % number),
    "requests without a secret": lambda number: repeat(b"GET /screenshot HTTP/1.1\r\nHost: desktop\r\n\r\n"),
    "half of a head": lambda number: chain([HEAD, None], repeat(b"")),
    "a handshake of TLS": lambda number: chain([HANDSHAKE], repeat(b"")),
    "lines without a carriage return": lambda number: chain([b"GET / HTTP/1.1\nHost: desktop\n\n"], repeat(b"\n")),
    "heads of odd bytes": lambda number: repeat(ODD_HEAD),
    "one byte, and an end by a reset": lambda number: iter([b"G"]),
    "nothing": lambda number: iter(()),
}
"""What a connection of this number says, one word after the other: None ends what it says, and an end closes it."""


@contextmanager
def flood(address, kind):
    """Keep many connections of a kind open, each anew when it is closed, until the block ends."""
    stop, full = threading.Event(), threading.Event()
    flooder = threading.Thread(target=_pour, args=(address, kind, stop, full), daemon=True)
    flooder.start()
    try:
        assert full.wait(60)
        yield
    finally:
        stop.set()
        flooder.join()


def _pour(address, kind, stop, full):
    numbers, held = count(), {}
    with ExitStack() as open_sockets:
        while not stop.is_set():
            while len(held) < CONNECTIONS and not stop.is_set():
                connection = open_sockets.enter_context(closing(socket.socket()))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.setblocking(False)
                connection.connect_ex(address)
                held[connection] = FLOODS[kind](next(numbers))
            for connection, words in list(held.items()):
                if not _say(connection, words):
                    connection.close()
                    del held[connection]
            full.set()
            stop.wait(PAUSE_S)


def _say(connection, words):
    """Send the next words of a connection; return whether it is still open."""
    try:
        connection.getpeername()
        word = next(words)
        if word is None:
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.send(word)
        while connection.recv(65536):
            pass
    except BlockingIOError:  # it takes no more for now, or has not answered
        return True
    except StopIteration:
        return False
    except OSError as error:  # it is still being made, or was refused or closed
        return error.errno == errno.ENOTCONN and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return False


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
    with closing(DockerDesktop(**QUICK, network=network)) as env:
        env.reset(editor_task())
        env.machine.guest.launch(["python3", "-c", CALLS_FROM_INSIDE])
        for _ in range(STEPS):
            env.step(Wait())
            assert env.evaluate() == 0.0
        env.machine.guest.execute("pkill python3", shell=True)
        for action in env.solve():
            env.step(action)
        assert env.evaluate() == 1.0


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
