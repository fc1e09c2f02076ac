"""Everything that can break in a real desktop without its agent; each breaks the container of this id."""

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
    run_as_root(container, "pkill -STOP Xvfb")


def kill_the_server(container):
    run_as_root(container, "pkill -KILL -f ^python3.*server.py")


@tenacity.retry(stop=tenacity.stop_after_attempt(10), wait=tenacity.wait_fixed(0.1), reraise=True)
def run_as_root(container, command):
    """Run a command in a desktop as nobody in it could; a reset in place ends it too, even half started."""
    docker("exec", "--user", "root", container, "sh", "-c", command, accept=(0, KILLED))


FAULTS = [kill, pause, disconnect, freeze_the_x_server, kill_the_server]
