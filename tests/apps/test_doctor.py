"""The doctor: what it says of this machine, and of machines that lack something."""

import pytest
from PIL import Image

from arpo.apps import doctor
from arpo.host.containers import Containers
from tests.envs.desktops import needs_desktop


@pytest.mark.parametrize("trouble", ["", "there is no /dev/kvm"])
def test_without_an_engine_nothing_is_booted_and_the_remedy_starts_one(monkeypatch, caplog, tmp_path, trouble):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr(doctor, "kvm_trouble", lambda: trouble)
    monkeypatch.setattr(Containers, "reaped", False)  # a process that has had containers waits for its engine
    monkeypatch.chdir(tmp_path)
    engine, *others = doctor.examine()
    assert [finding.name for finding in (engine, *others)] == ["engine", "memory", "disk", "ports", "kvm"]
    assert (engine.good, engine.needed) == (False, True)
    assert "make desktop" in engine.remedy
    assert (others[-1].good, others[-1].needed) == (trouble == "", False)  # KVM is wanted, and not needed
    assert others[-1].remedy
    assert doctor.look() == 1  # there is nothing to look at
    assert "make desktop" in caplog.text
    assert not doctor.PICTURE.exists()


def test_what_a_container_said_is_no_markup_and_moves_no_cursor(monkeypatch, capsys):
    said = "it said [/x] [link=http://x]a[/] \x1b[2J"
    monkeypatch.setattr(doctor, "examine", lambda: iter([doctor.Finding("desktop", False, said, said)]))
    monkeypatch.setenv("COLUMNS", "200")
    assert doctor.main() == 1
    assert capsys.readouterr().out.count(r"it said [/x] [link=http://x]a[/] \x1b[2J") == 2


@pytest.mark.parametrize("columns", ["40", "80"])
def test_what_is_to_be_copied_is_whole_however_narrow_the_terminal(monkeypatch, capsys, columns):
    words = "set env.make_env.machine.with_a_key_of_more_than_forty_letters=false and raise env.reset_timeout_s"
    bad = doctor.Finding("kvm", False, "there is none", words, needed=False)
    good = doctor.Finding("ports", True, "loopback connects", "bring it up")
    monkeypatch.setattr(doctor, "examine", lambda: iter([good, bad]))
    monkeypatch.setenv("COLUMNS", columns)
    assert doctor.main() == 0
    said = capsys.readouterr().out
    assert f"kvm: {words}\n" in said
    assert "bring it up" not in said


class TestWithDesktops:
    """What needs an engine and the image."""

    pytestmark = needs_desktop

    def test_a_machine_with_engine_and_image_boots_a_desktop_and_says_how_fast(self):
        findings = {finding.name: finding for finding in doctor.examine()}
        assert all(findings[name].good for name in ("engine", "image", "memory", "disk", "ports", "desktop"))
        assert "healthy in" in findings["desktop"].said

    def test_the_other_images_that_are_there_stand_beside_that_of_the_desktops(self, monkeypatch):
        monkeypatch.setattr(doctor, "OTHER_IMAGES", ("arpo/none:at-all", doctor.IMAGE))
        assert doctor.look_at_image().said == f"{doctor.IMAGE}, {doctor.IMAGE}"

    def test_a_look_is_a_picture_of_a_desktop_with_applications(self, monkeypatch, tmp_path, caplog):
        monkeypatch.chdir(tmp_path)
        caplog.set_level("INFO")
        assert doctor.look() == 0
        assert str(doctor.PICTURE) in caplog.text
        assert "docker run --detach" in caplog.text
        picture = Image.open(tmp_path / doctor.PICTURE)
        assert picture.size == (1280, 720)
        assert len(picture.convert("RGB").getcolors(1280 * 720)) > 100

    def test_a_missing_image_is_found_before_it_is_booted(self, monkeypatch):
        monkeypatch.setattr(doctor, "IMAGE", "arpo/none:at-all")
        findings = {finding.name: finding for finding in doctor.examine()}
        assert not findings["image"].good
        assert findings["image"].remedy == "bash docker/build_image.sh"
        assert "desktop" not in findings
