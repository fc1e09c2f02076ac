"""Everything that can break in a real desktop; each breaks the container of this id."""

import tenacity

from tests.envs.desktops import docker


def kill(container):
    docker("kill", container)


@tenacity.retry(stop=tenacity.stop_after_attempt(10), wait=tenacity.wait_fixed(0.1), reraise=True)
def pause(container):
    docker("pause", container)  # with version 1 of cgroups, a busy container cannot be frozen every time


def disconnect(container):
    docker("network", "disconnect", "bridge", container)


def freeze_the_x_server(container):
    docker("exec", "--user", "user", container, "pkill", "-STOP", "Xvfb")


def kill_the_x_server(container):
    docker("exec", "--user", "user", container, "pkill", "-KILL", "Xvfb")


def kill_the_server(container):
    docker("exec", "--user", "user", container, "pkill", "-KILL", "-f", "server.py")


def fill_the_disk(container):
    command = "head -c 500M /dev/zero > ~/big; true"
    docker("exec", "--user", "user", container, "sh", "-c", command)


def use_up_the_memory(container):
    hog = "choom --adjust 1000 -- python3 -c 'held = bytearray(2 << 30)'; true"
    docker("exec", "--user", "user", container, "sh", "-c", hog)


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
