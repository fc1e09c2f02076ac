"""Names of processes: for good, and true of the dead."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from arpo.host.processes import end_processes, is_owner_alive, process_tag
from tests.host.watchdogs import kill


@pytest.fixture
def sleeper(tmp_path):
    """A process whose own name looks like the rest of a line of /proc."""
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(shutil.which("sleep"))
    process = subprocess.Popen([program, "60"])
    yield process
    kill(process)


def name_of(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{pid}-{fields[19]}"


def test_this_process_lives_and_one_that_began_at_another_time_does_not():
    pid, began = process_tag().split("-")
    assert int(pid) == os.getpid()
    assert is_owner_alive(process_tag())
    assert not is_owner_alive(f"{pid}-{int(began) + 1}")
    assert not is_owner_alive("999999999-1")
    assert all(map(is_owner_alive, ("", "notes", "12-x", "12")))  # what is no name counts as living


def test_a_process_that_was_killed_is_dead_though_nobody_has_waited_for_it(sleeper):
    assert is_owner_alive(name_of(sleeper.pid))
    sleeper.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE
    assert not is_owner_alive(name_of(sleeper.pid))


def test_a_clock_that_was_set_and_a_process_that_may_not_be_looked_at_make_nobody_look_dead(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    name = process_tag()
    create_time = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: create_time(self) + 3600)  # as psutil reckons
    assert is_owner_alive(name)
    assert process_tag() == name
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(psutil.Process, "create_time", refuse)
    assert is_owner_alive("1-1")


TIDY = """
import signal, sys, time

def tidy(*_):
    time.sleep(0.5)
    sys.exit(7)

signal.signal(signal.SIGTERM, tidy)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_process_gets_the_time_to_tidy_up(monkeypatch):
    monkeypatch.setenv("ARPO_TEST_LABEL", "tidy")
    with subprocess.Popen([sys.executable, "-c", TIDY], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        monkeypatch.delenv("ARPO_TEST_LABEL")
        assert end_processes("tidy", variable="ARPO_TEST_LABEL") == 1
        assert process.wait(timeout=10) == 7
