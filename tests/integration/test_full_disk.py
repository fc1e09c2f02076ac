"""A disk that is full: the run says so, what was saved stays saved, and it goes on when there is room."""

import resource
import subprocess

import pytest

from arpo.callbacks.checkpoint import is_valid

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

ROOM = "13m"
"""Of one checkpoint of 9 MB and a rollout, but not of two."""


class SmallDisk:
    """A file system in memory with little room."""

    def __init__(self, directory):
        self.directory = directory
        command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(directory)]
        self.mounted = subprocess.run(command, check=False).returncode == 0

    def limit(self, process):
        """Where nothing can be mounted: no file may be longer than a part of a checkpoint."""
        if not self.mounted:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4_000_000, resource.RLIM_INFINITY))

    def free(self):
        if self.mounted:
            subprocess.run(["mount", "-o", "remount,size=200m", str(self.directory)], check=True)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.directory)], check=True)


@pytest.fixture
def disk(tmp_path):
    directory = tmp_path / "disk"
    directory.mkdir()
    disk = SmallDisk(directory)
    yield disk
    disk.close()


def test_a_full_disk_ends_the_run_with_a_sentence_and_resume_goes_on_when_there_is_room(disk, smoke, ending):
    run = ending(smoke.again(disk.directory / "run", "iterations=3"))
    run.log = disk.directory.with_name("run.log")
    run.start()
    disk.limit(run.process)
    assert run.wait() == 2, run.said
    last = run.said.strip().splitlines()[-1]
    assert "ERROR" in last
    assert "resume" in last
    assert "free space" in last
    assert "Traceback" not in run.said
    assert all(is_valid(path) for path in run.checkpoints)
    if disk.mounted:
        assert run.checkpoints
    run.assert_nothing_left()

    disk.free()
    assert run.go("resume=auto") == 0, run.said
    assert [line["step"] for line in run.metrics] == [0, 1, 2, 3]
    for one, other in zip(run.learned[1:3], smoke.run.learned[1:3], strict=True):
        assert one == other
