"""What virtual machines need of this machine: a KVM that runs one, and room for all of them."""

import shutil
import sys
import time
from pathlib import Path

import pytest

from arpo.errors import ConfigError
from arpo.host import kvm_probe
from arpo.host.machine import Budget, Resources, kvm_trouble


def probe(tmp_path, source):
    path = tmp_path / "probe.py"
    path.write_text(source)
    device = tmp_path / "kvm"
    device.touch()
    return {"device": device, "probe": path}


def test_a_virtual_machine_that_ran_is_no_trouble(tmp_path):
    assert kvm_trouble(**probe(tmp_path, "print('ok')")) == ""


def test_a_probe_that_hangs_is_ended_in_time(tmp_path):
    began = time.monotonic()
    trouble = kvm_trouble(**probe(tmp_path, "import time; time.sleep(60)"), timeout_s=0.5)
    assert "is there, but a virtual machine gave no answer within 0.5 s" in trouble
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print('the kernel refuses')", "but the kernel refuses: use a machine"),
        ("import sys; sys.exit(3)", "ended with code 3"),
    ],
)
def test_what_the_probe_says_is_handed_on(tmp_path, source, words):
    assert words in kvm_trouble(**probe(tmp_path, source))


def test_without_the_device_nothing_is_tried(tmp_path):
    assert f"there is no {tmp_path / 'kvm'}" in kvm_trouble(device=tmp_path / "kvm", probe=Path("/nowhere"))


def test_the_processor_s_flags_tell_which_virtualisation_it_has():
    assert kvm_probe.hardware_flag("processor: 0\nflags\t\t: fpu vme svm sse\n") == "svm"
    assert kvm_probe.hardware_flag("flags\t\t: fpu vmx\n") == "vmx"
    assert kvm_probe.hardware_flag("flags\t\t: fpu sse\nmodel name: svm vmx\n") is None


@pytest.mark.skipif(not Path("/dev/kvm").exists() or sys.platform != "linux", reason="there is no /dev/kvm")
def test_on_this_machine_the_probe_comes_to_a_verdict():
    trouble = kvm_trouble(timeout_s=30)
    assert trouble == "" or trouble.startswith("/dev/kvm is there, but")


BUDGET = Budget(desktops=16, memory_mb=4096, overhead_mb=512, cores=4, disk_mb=2048)
ROOMY = Resources(memory_mb=80 * 1024, cores=16, disk_mb=40 * 1024)
# 16 x 4.5 GiB = 72, 16 x 4 = 64 = 16 x 4 shared, 16 x 2 GiB = 32


def test_what_fits_is_no_trouble_and_is_said_in_one_line():
    assert BUDGET.trouble(ROOMY) == []
    assert BUDGET.table(ROOMY) == (
        "16 virtual machines: 72 GiB of memory (80 free), 64 virtual cores (16 cores), 32 GiB of disk (40 free)"
    )


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (Resources(71 * 1024, 16, 40 * 1024), "need 72 GiB of memory, and there are 71 free: 15 fit"),
        (
            Resources(80 * 1024, 15, 40 * 1024),
            r"need 64 virtual cores, and there are 60 (15 shared by 4 each): 15 fit",
        ),
        (Resources(80 * 1024, 16, 31 * 1024), "need 32 GiB of disk, and there are 31 free: 15 fit"),
    ],
    ids=["memory", "cores", "disk"],
)
def test_what_does_not_fit_is_named_with_what_would(here, words):
    (line,) = BUDGET.trouble(here)
    assert words in line
    assert "set env.size" in line


def test_an_impossible_budget_is_refused():
    with pytest.raises(ConfigError, match="overhead_mb of a budget must not be negative, got -1"):
        Budget(desktops=1, memory_mb=1, overhead_mb=-1, cores=1, disk_mb=1)
    with pytest.raises(ConfigError, match=r"memory_mb of a budget must be greater than 0, got 0"):
        Budget(desktops=1, memory_mb=0, cores=1, disk_mb=1)


def test_room_is_looked_for_on_the_disk_of_the_engine():
    """/dev/shm is a disk of its own on every Linux; a directory of an engine elsewhere is not there."""
    free_mb = shutil.disk_usage("/dev/shm").free // 2**20
    assert Resources.here(Path("/dev/shm")).disk_mb == pytest.approx(free_mb, abs=64)
    root_mb = shutil.disk_usage("/").free // 2**20
    assert Resources.here(Path("/nowhere")).disk_mb == pytest.approx(root_mb, abs=1024)
