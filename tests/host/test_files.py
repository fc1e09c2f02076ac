"""Files that are whole or absent, and locks; the disk is real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.host.files import atomically, take_lock, write_atomically
from tests.forks import ROOT
from tests.host.watchdogs import kill


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("full")], ids=["Ctrl-C", "disk full"])
def test_when_writing_fails_the_old_file_stays_and_nothing_lies_beside_it(tmp_path, error):
    (tmp_path / "policy").write_text("old")

    def fill():
        with atomically(tmp_path / "policy") as partial:
            partial.mkdir()
            (partial / "half").write_text("x")
            raise error

    with pytest.raises(type(error)):
        fill()
    assert (tmp_path / "policy").read_text() == "old"
    assert names(tmp_path) == ["policy"]


def test_the_old_file_stands_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "numbers"
    path.write_text("old")
    (tmp_path / "numbers.partial").write_text("torn")  # by a writer that was killed
    with atomically(path) as partial:
        assert not partial.exists()
        partial.write_text("half")
        assert path.read_text() == "old"
        assert partial.parent == tmp_path
        partial.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["numbers"]


def test_the_directory_of_the_file_is_made_and_a_partial_one_can_lie_in_another(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "text", "x")
    assert (tmp_path / "a" / "b" / "text").read_text() == "x"
    with atomically(tmp_path / "screen", scratch=tmp_path / "a") as partial:
        partial.write_bytes(b"x")
        assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["b"]
    assert (tmp_path / "screen").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["policy", "policy.partial"], ids=["the old one", "what a killed writer left"])
def test_a_directory_takes_the_place_of_a_directory_and_nothing_is_mixed_into_it(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "old").write_text("old")
    with atomically(tmp_path / "policy") as partial:
        partial.mkdir()
        (partial / "new").write_text("new")
    assert names(tmp_path) == ["policy"]
    assert names(tmp_path / "policy") == ["new"]


@pytest.mark.parametrize("sync", [False, True])
def test_only_who_asks_waits_for_the_disk_first_for_the_file_then_for_its_name(tmp_path, monkeypatch, sync):
    settled = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: settled.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    with atomically(tmp_path / "file", sync=sync) as partial:
        partial.write_text("x")
    assert settled == ([str(tmp_path / "file.partial"), str(tmp_path)] if sync else [])


OWNER = """
import os, sys, time
from pathlib import Path
from arpo.host.files import take_lock

lock = take_lock(Path(sys.argv[1]))
child = os.fork() or (time.sleep(60), os._exit(0))
print(child, flush=True)
if sys.stdin.readline() == "release\\n":
    os.close(lock)
    print("released", flush=True)
time.sleep(60)
"""


@pytest.fixture
def owner(tmp_path):
    """Another process with a lock, and a child that it forked."""
    command = [sys.executable, "-c", OWNER, str(tmp_path / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        child = int(process.stdout.readline())
        yield process
        process.kill()
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("end", ["released", "killed"])
def test_a_lock_is_held_until_it_is_released_or_its_owner_dies_though_a_forked_child_lives(owner, tmp_path, end):
    assert take_lock(tmp_path / "lock") is None
    descriptors = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    assert str(tmp_path / "lock") not in map(os.readlink, descriptors)  # a refused lock leaves no open file
    if end == "killed":
        kill(owner)
    else:
        owner.stdin.write("release\n")
        owner.stdin.flush()
        owner.stdout.readline()
    assert take_lock(tmp_path / "lock") is not None


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_lock_may_be_private_or_seen_by_all(tmp_path, mode):
    take_lock(tmp_path / "lock", mode=mode)
    assert (tmp_path / "lock").stat().st_mode & 0o777 == mode
