"""What `make osworld` installs: the graders, pinned, and none of the packages that exclude ours."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import osworld  # noqa: E402
import setup  # noqa: E402


def names(path: Path) -> dict[str, str]:
    return {setup.package_of(line): line for line in setup.requirement_lines(path.read_text(), "cpu")}


def test_everything_that_is_wanted_is_pinned_and_sorted() -> None:
    locked = osworld.LOCK.read_text()
    assert setup.lock_text(locked) == locked
    assert set(names(osworld.WANTED)) <= set(names(osworld.LOCK))
    assert re.search(r"^desktop_env==1\.0\.2$", locked, re.MULTILINE)


def test_what_is_heavy_and_needed_by_nothing_stays_out() -> None:
    assert not {"torch", "transformers", "easyocr", "onnxruntime", "ray"} & set(names(osworld.LOCK))


@pytest.mark.parametrize("line", names(osworld.WANTED).values())
def test_a_bound_that_is_wanted_holds_for_what_is_pinned(line: str) -> None:
    from packaging.requirements import Requirement

    wanted = Requirement(line)
    assert wanted.specifier.contains(Requirement(names(osworld.LOCK)[setup.package_of(line)]).specifier.__str__()[2:])


def test_a_changed_pin_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
    environment = osworld.GraderEnvironment(tmp_path, "cpu")
    before = environment.fingerprint()
    changed = tmp_path / "osworld.txt"
    changed.write_text(osworld.LOCK.read_text().replace("1.0.2", "1.0.3"))
    monkeypatch.setattr(osworld, "LOCK", changed)
    assert environment.fingerprint() != before


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(setup.SetupError, match="unknown arguments 'all'"):
        osworld.run(["all"])
