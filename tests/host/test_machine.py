"""What desktops need of this machine: a KVM, and room for all of them."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.host.machine import Budget, Resources, kvm_trouble


@pytest.fixture
def kvm(tmp_path):
    """What is asked: a file in the place of the device, and a processor with these flags."""
    (tmp_path / "kvm").touch()

    def ask(flags):
        (tmp_path / "cpuinfo").write_text(f"processor: 0\nflags\t\t: fpu {flags} sse\nmodel name: svm vmx\n")
        return kvm_trouble(tmp_path / "kvm", tmp_path / "cpuinfo")

    return ask


def test_a_machine_without_the_device_or_virtualisation_or_whose_kernel_refuses_is_named(kvm, tmp_path, monkeypatch):
    assert f"there is no {tmp_path / 'none'}: enable virtualisation" in kvm_trouble(tmp_path / "none")
    assert "the processor shows neither vmx nor svm" in kvm("vme")
    for flag in ("vmx", "svm"):
        assert "but the kernel refuses a virtual machine: " in kvm(flag)  # an empty file knows no request
    monkeypatch.setattr("fcntl.ioctl", lambda device, request, argument: os.open(os.devnull, os.O_RDONLY))
    assert kvm("vmx") == ""


BUDGET = Budget(desktops=16, memory_mb=4096, overhead_mb=512, cores=4, disk_mb=2048)
ROOMY = Resources(memory_mb=80 * 1024, cores=16, disk_mb=40 * 1024)
# 16 x 4.5 GiB = 72, 16 x 4 = 64 = 16 x 4 shared, 16 x 2 GiB = 32


def test_what_fits_is_no_trouble_and_is_said_in_one_line_and_an_impossible_budget_is_refused():
    assert BUDGET.trouble(ROOMY) == []
    assert BUDGET.needs() == "16 desktops: 72 GiB of memory, 16 cores, 32 GiB of disk"
    assert str(ROOMY) == "80 GiB of memory, 16 cores, 40 GiB of disk"
    for wrong in ("overhead_mb must be at least 0, got -1", "memory_mb must be at least 1, got -1"):
        with pytest.raises(ConfigError, match=wrong):
            replace(BUDGET, **{wrong.partition(" ")[0]: -1})


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (replace(ROOMY, memory_mb=71 * 1024), "need 72 GiB of memory, and there are 71 free: 15 fit"),
        (replace(ROOMY, cores=15), "need 64 virtual cores, and there are 60 (15 shared by 4 each): 15 fit"),
        (replace(ROOMY, disk_mb=31 * 1024), "need 32 GiB of disk, and there are 31 free: 15 fit"),
    ],
    ids=["memory", "cores", "disk"],
)
def test_what_does_not_fit_is_named_with_what_would(here, words):
    (line,) = BUDGET.trouble(here)
    assert words in line
    assert "set env.size" in line


def test_room_is_looked_for_on_the_disk_of_the_engine():
    """/dev/shm is a disk of its own on every Linux; a directory of an engine elsewhere is not there."""
    free_mb = shutil.disk_usage("/dev/shm").free // 2**20
    assert Resources.here(Path("/dev/shm")).disk_mb == pytest.approx(free_mb, abs=64)
    root_mb = shutil.disk_usage("/").free // 2**20
    assert Resources.here(Path("/nowhere")).disk_mb == pytest.approx(root_mb, abs=1024)
