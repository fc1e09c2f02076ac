"""Everything that can break in a real desktop; each breaks the container of this id."""

import signal

import tenacity

from tests.envs.desktops import docker

KILLED = 128 + signal.SIGKILL


def kill(container):
    docker("kill", container)


@tenacity.retry(stop=tenacity.stop_after_attempt(10), wait=tenacity.wait_fixed(0.1), reraise=True)
def pause(container):
    docker("pause", container)  # with version 1 of cgroups, a busy container cannot be frozen every time


def disconnect(container):
    docker("network", "disconnect", "bridge", container)


def freeze_the_x_server(container):
    run_as_user(container, "pkill -STOP Xvfb")


def kill_the_x_server(container):
    run_as_user(container, "pkill -KILL Xvfb")


def kill_the_server(container):
    run_as_user(container, "pkill -KILL -f ^python3.*server.py")


def fill_the_disk(container):
    run_as_user(container, "head -c 500M /dev/zero > ~/big; true")


def use_up_the_memory(container):
    run_as_user(container, "choom --adjust 1000 -- python3 -c 'held = bytearray(2 << 30)'; true")


def run_as_user(container, command):
    """Run a command in a desktop; a reset in place ends it, and then nothing has broken."""
    docker("exec", "--user", "user", container, "sh", "-c", command, accept=(0, KILLED))


FAULTS = [
    kill,
    pause,
    disconnect,
    freeze_the_x_server,
    kill_the_x_server,
    kill_the_server,
    fill_the_disk,
    use_up_the_memory,
]
