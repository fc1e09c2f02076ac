"""What `make osworld` installs: the graders, pinned, and none of the packages that exclude ours."""

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import osworld  # noqa: E402
import setup  # noqa: E402


def names(path: Path) -> dict[str, str]:
    return {
        canonicalize_name(Requirement(line).name): line for line in setup.requirement_lines(path.read_text(), "cpu")
    }


def test_everything_that_is_wanted_is_pinned_and_sorted() -> None:
    locked = osworld.LOCK.read_text()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in locked.splitlines())
    assert list(names(osworld.LOCK)) == sorted(names(osworld.LOCK))
    assert set(names(osworld.WANTED)) <= set(names(osworld.LOCK))
    assert re.search(r"^desktop-env==1\.0\.2$", locked, re.MULTILINE)


def test_what_is_heavy_and_needed_by_nothing_stays_out() -> None:
    assert not {"torch", "transformers", "easyocr", "onnxruntime", "ray"} & set(names(osworld.LOCK))


def test_a_bound_that_is_wanted_holds_for_what_is_pinned() -> None:
    for name, line in names(osworld.WANTED).items():
        locked = Requirement(names(osworld.LOCK)[name])
        assert Requirement(line).specifier.contains(str(locked.specifier)[2:]), name


@pytest.mark.usefixtures("instant_venv")
def test_a_changed_pin_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv-osworld" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-osworld" / "pyvenv.cfg").write_text("version = 3.11.7\n")
    changed = tmp_path / "osworld.txt"
    changed.write_text(osworld.LOCK.read_text())
    installed = []
    monkeypatch.setattr(osworld, "ROOT", tmp_path)
    monkeypatch.setattr(osworld, "LOCK", changed)
    monkeypatch.setattr(osworld, "install", installed.append)
    osworld.run(lock=False)
    osworld.run(lock=False)
    assert len(installed) == 1
    changed.write_text(osworld.LOCK.read_text().replace("1.0.2", "1.0.3"))
    osworld.run(lock=False)
    assert len(installed) == 2


def test_an_unknown_argument_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    assert setup.main(osworld.run, ["all"]) == 1
    assert "unknown arguments 'all'; allowed is nothing, or: lock" in caplog.text


def test_the_program_that_imports_every_grader_is_there() -> None:
    assert osworld.GRADERS.is_file()
