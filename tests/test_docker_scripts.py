"""The scripts that install, start and stop an engine and build its image, among programs that are fakes."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "docker"


def make_programs(folder, **texts):
    """Write programs, by their names."""
    for name, text in texts.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{text}")
        (folder / name.replace("_", "-")).chmod(0o755)


def run(command, path, **variables):
    environment = {"PATH": str(path), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def run_script(name, *arguments, path, **variables):
    """Run a script to its end; returns its status, and what it printed and said."""
    done = run(["bash", SCRIPTS / name, *arguments], path, **variables)
    return done.returncode, done.stdout, done.stderr


DOCKER = '[ -z "$DOCKER_HOST" ] && [ -e "$MARK" ]\n'
APT = """echo "debconf: delaying package configuration, since apt-utils is not installed" >&2
case "$*" in *install*) [ -z "$BROKEN" ] && : > "$MARK" ;; esac
"""
"""With systemd, installing the package starts an engine at the usual place."""


@pytest.fixture
def machine(tmp_path):
    """A PATH without a daemon, where `mark` is there while an engine answers."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "mkdir", "mktemp", "cat", "rm"):
        (programs / name).symlink_to(shutil.which(name))
    make_programs(programs, docker=DOCKER, apt_get=APT)
    return programs


USUAL = (0, "export DOCKER_HOST=unix:///var/run/docker.sock\n", "")


def test_an_engine_that_answers_or_came_with_the_package_is_used_and_else_the_package_says_why_not(machine, tmp_path):
    def start(**variables):
        mark = str(tmp_path / "mark")
        return run_script("start_engine.sh", tmp_path / "engine", path=machine, MARK=mark, **variables)

    status, printed, said = start(BROKEN="1")
    assert (status, printed) == (1, "")
    assert "debconf: delaying package configuration" in said
    assert start() == USUAL
    assert (tmp_path / "mark").exists()
    assert start() == start(DOCKER_HOST="unix:///nowhere") == USUAL
    assert not (tmp_path / "engine").exists()


BRIDGE = """
set -eu
ip link add "$4" type bridge
ip link add left type veth peer name theirs
ip link set left master "$4"
ip link add other type veth peer name elsewhere
[ "$3" = none ] || { exec -a "$3" sleep 60 & until grep -q "$3" /proc/$!/cmdline; do :; done; }
bash "$2" "$1" >&2
ip -oneline link show type veth | sed 's/^[0-9]*: //; s/[@:].*//' | sort
"""
"""In namespaces of its own: a bridge with the cable of a container that has died, and a cable that is not at it."""


@pytest.mark.parametrize(
    ("lives", "bridge", "cables"),
    [
        ("none", "docker0", ["elsewhere", "other"]),
        ("containerd-shim-runc-v2", "docker0", ["elsewhere", "left", "other", "theirs"]),
        ("none", "another", ["elsewhere", "left", "other", "theirs"]),  # no engine has been on this machine
    ],
)
def test_a_dead_container_keeps_no_address_that_the_engine_gives_to_another(machine, tmp_path, lives, bridge, cables):
    alone = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("ip") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may make network namespaces, and `ip` shows them")
    docker, daemon = '[ "$DOCKER_HOST" ] && [ -e "$MARK" ]\n', ': > "$MARK"\nexec sleep 60\n'
    make_programs(machine, docker=docker, dockerd=daemon, iptables="", mmdebstrap="")
    script = str(SCRIPTS / "start_engine.sh")
    command = [*alone, "bash", "-c", BRIDGE, "bash", str(tmp_path / "engine"), script, lives, bridge]
    done = run(command, f"{machine}:{os.environ['PATH']}", MARK=str(tmp_path / "mark"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mark").exists()
    assert done.stdout.split() == cables


STOPPED_DOCKER = """echo "$*" >> "$CALLS"
case "$*" in *ps*) echo first; echo second ;; esac
"""


@pytest.fixture
def stop(tmp_path):
    """Runs the script that stops an engine; returns what it says and how it called `docker`."""
    make_programs(tmp_path, docker=STOPPED_DOCKER)
    calls = tmp_path / "calls"
    calls.touch()

    def run():
        path = f"{tmp_path}:{os.environ['PATH']}"
        status, printed, said = run_script("stop_engine.sh", tmp_path, path=path, CALLS=str(calls))
        assert status == 0, said
        return printed, calls.read_text().splitlines()

    return run


@pytest.fixture
def process(tmp_path, request):
    """A process with the name that the test asks for, in the place of the engine."""
    with subprocess.Popen(["bash", "-c", f"exec -a {request.param} sleep 60"]) as process:
        (tmp_path / "dockerd.pid").write_text(str(process.pid))
        while request.param.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
            pass
        yield process
        process.kill()


@pytest.mark.parametrize("process", ["dockerd"], indirect=True)
def test_our_engine_is_stopped_after_its_containers_are_removed(stop, process, tmp_path):
    said, calls = stop()
    host = f"--host unix://{tmp_path}/docker.sock"
    assert calls == [f"{host} ps --all --quiet", f"{host} rm --force --volumes first second"]
    assert process.wait(timeout=5) == -signal.SIGTERM
    assert said == f"stop_engine.sh: the engine has ended; `rm -rf {tmp_path}` removes its images too\n"


@pytest.mark.parametrize("process", ["stranger"], indirect=True)
def test_a_process_that_got_the_number_of_an_engine_is_left_alone_and_without_one_there_is_nothing_to_stop(
    stop, process, tmp_path
):
    nothing = (f"stop_engine.sh: no engine runs in {tmp_path}\n", [])
    assert stop() == nothing
    assert process.poll() is None
    (tmp_path / "dockerd.pid").unlink(missing_ok=True)
    assert stop() == nothing


MOUNTS = """
set -eu
cd "$1"
mkdir -p data run/netns 'a \\ space' "$1-of-others"
mount --bind data data
mkdir shared && mount --make-rshared data && mount --bind data shared
for place in data 'a \\ space' "$1-of-others"; do mkdir -p "$place/merged"; mount -t tmpfs none "$place/merged"; done
mount -t tmpfs none data/merged
: > run/netns/first && mount --bind /proc/self/ns/net run/netns/first
: > data/merged/busy && exec 9<data/merged/busy
bash "$2" "$1" >&2
! grep " $1/" /proc/self/mountinfo && grep --quiet " $1-of-others/merged " /proc/self/mountinfo
rm -rf "$1"
"""
"""In a mount namespace of its own: the mounts of an engine, one twice, one shared, one busy, one of another."""


@pytest.mark.parametrize("process", ["dockerd", "stranger"], indirect=True)
def test_after_a_stop_no_mount_keeps_the_directory(stop, process, tmp_path):
    private = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*private, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount")
    place = tmp_path / "engine"
    place.mkdir()
    (tmp_path / "dockerd.pid").rename(place / "dockerd.pid")
    command = [*private, "bash", "-c", MOUNTS, "bash", str(place), str(SCRIPTS / "stop_engine.sh")]
    done = run(command, f"{tmp_path}:{os.environ['PATH']}", CALLS=str(tmp_path / "calls"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not place.exists()


def test_a_long_step_says_every_few_seconds_what_it_is_and_keeps_its_exit_status(tmp_path):
    log = tmp_path / "said"
    step = f"until [ $(wc -l <{log}) -ge 2 ]; do sleep 0.05; done; return 3"
    script = f". {SCRIPTS}/progress.sh; step() {{ {step}; }}; PROGRESS_S=0.2; with_progress 'the step' step"
    with log.open("w") as said:
        done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=said, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, b"")
    assert re.fullmatch(r"(the step \(\d+ s\)\n){2,}", log.read_text())


BUILDER = """[ "$1" = build ] || exit 0
echo sha256:0123456789
echo "debconf: unable to initialize frontend: Dialog" >&2
exit $BUILD_STATUS
"""
PIP = """echo "WARNING: Location 'https://mirror/simple' is ignored" >&2
exit $PIP_STATUS
"""


def test_a_build_shows_the_lines_of_the_script_alone_and_where_a_step_fails_all_that_it_said(tmp_path):
    make_programs(tmp_path, docker=BUILDER, python3=PIP)

    def build(*, docker=0, pip=0):
        """Run the script with a Docker and a pip that are fakes, and end with these exit statuses."""
        variables = {"TMPDIR": str(tmp_path), "BUILD_STATUS": str(docker), "PIP_STATUS": str(pip)}
        path = f"{tmp_path}:{os.environ['PATH']}"
        status, printed, said = run_script("build_image.sh", "plain", "registry", path=path, **variables)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["docker", "python3"]  # and nothing is left
        return status, re.sub(r"\d+ s", "0 s", printed).splitlines(), said

    lines = ["fetching PyAutoGUI", "building arpo/desktop:plain", "done"]
    assert build() == (0, [f"build_image.sh: {line} (0 s)" for line in lines], "")
    docker = "sha256:0123456789\ndebconf: unable to initialize frontend: Dialog\n"
    pip = "WARNING: Location 'https://mirror/simple' is ignored\n"
    for failing, said in (({"docker": 3}, docker), ({"pip": 3}, pip)):
        status, lines, words = build(**failing)
        assert status != 0
        assert not lines[-1].startswith("build_image.sh: done")
        assert words == said
