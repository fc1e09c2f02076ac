"""Containers of a run: limits, isolation, the secret, and what is left when their owner dies."""

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import closing

import pytest

from arpo.envs.desktop.env import DockerDesktop
from arpo.envs.guest.client import Guest
from arpo.errors import ConfigError, EnvError
from arpo.host.containers import Containers, host_name
from arpo.host.processes import process_tag
from arpo.host.session import Session
from tests.envs.desktops import IMAGE, QUICK, docker, editor_task, needs_desktop
from tests.forks import ROOT
from tests.host.watchdogs import end_watchdogs, kill, wait_until

pytestmark = needs_desktop


@pytest.fixture(scope="module")
def desktop():
    env = DockerDesktop(**QUICK)
    env.reset(editor_task())
    yield env
    env.close()


@pytest.fixture(scope="module")
def facts(desktop):
    return json.loads(docker("inspect", desktop.machine.container.id))[0]


def test_the_last_words_of_a_desktop_that_runs_have_its_programs(desktop):
    words = desktop.machine.container.last_words()
    assert re.fullmatch(r"container [0-9a-f]{12} runs .*python3, Xvfb, openbox.*: silent", words)


def in_guest(desktop, command):
    return desktop.machine.guest.execute(command, shell=True, timeout_s=20)


def ask(port, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    body = json.dumps({"command": ["id"]})
    connection.request("POST", "/execute", body, {"Content-Type": "application/json", **headers})
    return connection.getresponse().status


def test_ports_are_on_loopback_resources_are_limited_rights_are_dropped_and_labels_say_whose_it_is(desktop, facts):
    (binding,) = facts["NetworkSettings"]["Ports"]["5000/tcp"]
    assert binding == {"HostIp": "127.0.0.1", "HostPort": str(desktop.machine.container.port(5000))}
    host = facts["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 768 * 2**20
    assert (host["PidsLimit"], host["NanoCpus"]) == (512, 2_000_000_000)
    assert host["CapDrop"] == ["ALL"]
    assert host["ReadonlyRootfs"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert not host["Privileged"]
    labels = facts["Config"]["Labels"]
    assert labels["arpo.owner"] == process_tag()
    assert labels["arpo.session"] == os.environ.get("ARPO_SESSION", "")


def test_a_guest_is_a_user_without_rights_who_cannot_change_the_system(desktop):
    assert in_guest(desktop, "id -un").output == "user\n"
    status = dict(line.split(":\t") for line in in_guest(desktop, "cat /proc/self/status").output.splitlines())
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")} == {"0000000000000000"}
    assert status["NoNewPrivs"] == "1"
    assert in_guest(desktop, "touch /usr/bin/x").returncode != 0
    assert in_guest(desktop, "nft flush ruleset").returncode != 0


def test_a_guest_reaches_neither_the_network_nor_the_host_nor_another_guest(desktop, facts):
    gateway = facts["NetworkSettings"]["Gateway"]
    server = subprocess.Popen([sys.executable, "-m", "http.server", "0", "--bind", gateway], stdout=subprocess.PIPE)
    try:
        port = int(server.stdout.readline().decode().split("port ")[1].split()[0])
        reach = "timeout 3 bash -c 'exec 3<>/dev/tcp/{}/{} && echo reached'"
        here = subprocess.run(["bash", "-c", reach.format(gateway, port)], capture_output=True, check=True)
        assert here.stdout == b"reached\n"
        assert in_guest(desktop, reach.format(gateway, port)).output == ""
        own = "python3 -m http.server 8000 >/dev/null 2>&1 & sleep 2; " + reach.format("127.0.0.1", 8000) + "; kill $!"
        assert in_guest(desktop, own).output == "reached\n"  # the test can tell
        assert in_guest(desktop, reach.format("127.0.0.1", 5000)).output == ""  # nor its own guest server
        udp = "python3 -c \"import socket; socket.socket(2, 2).sendto(b'x', ('{}', 53))\""
        assert in_guest(desktop, udp.format(gateway)).returncode != 0
        assert in_guest(desktop, udp.format("127.0.0.1")).returncode == 0
        with closing(DockerDesktop(**QUICK)) as other:
            address = json.loads(docker("inspect", other.machine.container.id))[0]["NetworkSettings"]["IPAddress"]
            assert in_guest(desktop, reach.format(address, 5000)).output == ""
    finally:
        server.kill()
        server.communicate()


def test_an_open_desktop_reaches_its_host(facts):
    with closing(DockerDesktop(**QUICK, network="open")) as env:
        gateway = facts["NetworkSettings"]["Gateway"]
        sent = f"python3 -c \"import socket; socket.socket(2, 2).sendto(b'x', ('{gateway}', 53))\""
        assert in_guest(env, sent).returncode == 0


def test_a_process_without_the_secret_cannot_drive_a_guest(desktop):
    port = desktop.machine.container.port(5000)
    assert ask(port, {}) == ask(port, {"Authorization": "Bearer " + "0" * 32}) == 401
    assert ask(port, {"Authorization": f"Bearer {desktop.machine.secret}"}) == 200
    with pytest.raises(EnvError, match="wants the secret"):
        Guest(f"http://127.0.0.1:{port}").screenshot()


@pytest.mark.parametrize(
    ("length", "knows_the_secret", "status"),
    [(256 * 2**20, False, 401), (-1, True, 413), (2**40, True, 413), ("many", True, 413)],
)
def test_a_body_that_will_not_be_used_is_not_read(desktop, length, knows_the_secret, status):
    secret = desktop.machine.secret if knows_the_secret else ""
    connection = http.client.HTTPConnection("127.0.0.1", desktop.machine.container.port(5000), timeout=5)
    connection.putrequest("POST", "/action")
    connection.putheader("Authorization", f"Bearer {secret}")
    connection.putheader("Content-Length", str(length))
    connection.endheaders()
    answer = connection.getresponse()  # though no body was sent
    assert (answer.status, answer.headers["Connection"]) == (status, "close")
    connection.close()


def test_a_missing_image_is_a_matter_of_configuration():
    with pytest.raises(ConfigError, match=r"there is no image arpo/none:at-all here; docker/build_image\.sh"):
        DockerDesktop(image="arpo/none:at-all")


OWNER = """
import sys
from pathlib import Path
from arpo.host.session import Session
from arpo.envs.desktop.env import DockerDesktop
session = Session.start(Path(sys.argv[1]))
env = DockerDesktop(screen=(320, 240))
print(session.label, env.machine.container.id, flush=True)
sys.stdin.readline()
session.close()
"""


@pytest.fixture
def owner(tmp_path):
    """A process with a session and a desktop; yields it with the label and the container."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    label, container = process.stdout.readline().decode().split()
    yield process, label, container
    process.kill()
    process.communicate()
    docker("rm", "--force", container)


@pytest.mark.parametrize("end", ["closed", "killed", "killed with its watchdog"])
def test_containers_of_a_run_go_with_it_or_when_the_next_one_starts(owner, tmp_path, end):
    process, label, container = owner
    assert container[:12] in running(label)  # beside its cell
    if end == "closed":
        process.communicate(b"\n")
        assert running(label) == []
        return
    if end == "killed with its watchdog":
        end_watchdogs(tmp_path)
    kill(process)
    if end == "killed":
        wait_until(lambda: running(label) == [])
        return
    assert container[:12] in running(label)
    with Session.start(tmp_path):
        assert running(label) == []


def test_a_command_that_plays_tasks_leaves_no_container_when_it_is_killed():
    command = [sys.executable, "-m", "arpo", "tasks", "certify", "terminal/count-lines", "env=desktop", "--repeats=99"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: of_process(process.pid), timeout_s=120)
    finally:
        kill(process)
    wait_until(lambda: not of_process(process.pid))


def of_process(pid):
    """The containers that a process owns."""
    listed = docker("ps", "--all", "--format", '{{.ID}} {{.Label "arpo.owner"}}').splitlines()
    return [name for name, *owner in map(str.split, listed) if owner and owner[0].startswith(f"{pid}-")]


def test_the_first_launch_of_a_process_removes_what_dead_owners_left_and_nothing_else():
    dead = subprocess.Popen(["true"])
    dead.wait()
    left, kept = start_stranger(f"{dead.pid}-1"), start_stranger(process_tag())
    try:
        Containers.reaped = False
        Containers().close()
        there = docker("ps", "--all", "--quiet", "--no-trunc")
        assert left not in there
        assert kept in there
    finally:
        docker("rm", "--force", kept)


def test_a_container_that_could_not_be_removed_goes_before_the_next_one_starts():
    left = start_stranger(process_tag())
    Containers.left_over.add(left)
    with closing(DockerDesktop(**QUICK)):
        assert left not in docker("ps", "--all", "--quiet", "--no-trunc")
        assert not Containers.left_over


def start_stranger(owner):
    """A container like ours, of another owner."""
    labels = ("--label", f"arpo.owner={owner}", "--label", f"arpo.host={host_name()}")
    return docker("run", "--detach", *labels, IMAGE, "sleep", "60").strip()


def running(label):
    return docker("ps", "--all", "--quiet", "--filter", f"label=arpo.session={label}").split()


def test_a_session_leaves_containers_of_its_process_that_began_before_it(desktop, tmp_path):
    with Session.start(tmp_path):
        DockerDesktop(**QUICK).close()
    assert desktop.machine.container.is_running()
