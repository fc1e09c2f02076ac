"""The doctor: what it says of this machine, and of machines that lack something."""

import shutil

import pytest

from arpo import doctor
from tests.envs.desktops import needs_desktop


def test_the_boot_sector_is_a_boot_sector():
    assert len(doctor.BOOT_SECTOR) == 512
    assert doctor.BOOT_SECTOR.endswith(b"\x55\xaa")


@pytest.mark.skipif(shutil.which("qemu-system-x86_64") is None, reason="no QEMU: qemu-system-x86_64 is not in PATH")
def test_the_boot_sector_reaches_64_bit_code_on_an_emulated_processor_and_one_that_halts_does_not(monkeypatch):
    assert doctor.run_boot_sector("qemu-system-x86_64", accelerator="tcg")[0] == doctor.BOOTED
    monkeypatch.setattr(doctor, "BOOT_SECTOR", b"\xf4".ljust(510, b"\0") + b"\x55\xaa")
    monkeypatch.setattr(doctor, "KVM_TIMEOUT_S", 3.0)
    assert doctor.run_boot_sector("qemu-system-x86_64", accelerator="tcg") == (-1, "it hung for 3 s")


def test_an_engine_that_does_not_answer_is_missing_and_says_how_to_start_one(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    found = doctor.look_at_engine()
    assert not found.good
    assert found.needed
    assert "docker/start_engine.sh" in found.remedy


def test_without_an_engine_nothing_is_booted(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert [finding.name for finding in doctor.examine()] == ["engine", "memory", "disk", "ports", "kvm"]


def test_kvm_without_qemu_is_not_believed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.boot_with_kvm()
    assert not found.good
    assert not found.needed
    assert found.remedy


class TestWithDesktops:
    """What needs an engine and the image."""

    pytestmark = needs_desktop

    def test_a_machine_with_engine_and_image_boots_a_desktop_and_says_how_fast(self):
        findings = {finding.name: finding for finding in doctor.examine()}
        assert all(findings[name].good for name in ("engine", "image", "memory", "disk", "ports", "desktop"))
        assert "healthy in" in findings["desktop"].said

    def test_a_missing_image_is_found_before_it_is_booted(self, monkeypatch):
        monkeypatch.setattr(doctor, "IMAGE", "arpo/none:at-all")
        findings = {finding.name: finding for finding in doctor.examine()}
        assert not findings["image"].good
        assert findings["image"].remedy == "bash docker/build_image.sh"
        assert "desktop" not in findings
