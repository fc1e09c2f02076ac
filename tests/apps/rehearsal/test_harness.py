"""The harness of a rehearsal: the last words of a run that fails, and that none is left."""

from pathlib import Path

import pytest

from arpo.apps.rehearsal import harness
from arpo.apps.rehearsal.harness import RehearsalError, harnessed

LOGGING = """
import logging, os, subprocess, sys, time
logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a few lines in the place of train.py."""

    def write(code: str) -> None:
        path = tmp_path / "program.py"
        path.write_text(LOGGING + code)
        monkeypatch.setattr(harness, "PROGRAM", path)

    return write


def play(folder: Path, *overrides: str, until: str = "") -> str:
    """Start the program, wait for its end or for a file, and return what it said."""
    with harnessed(folder, nodes=1, desktops=0) as played:
        played.start(folder / "composition.yaml", *overrides)
        if until:
            played.wait_until((folder / until).exists, until)
            played.kill()
            played.start(folder / "composition.yaml", "again")
        played.wait()
    return (folder / "node_0.log").read_text()


def failure(folder: Path, *overrides: str, until: str = "") -> str:
    with pytest.raises(RehearsalError) as error:
        play(folder, *overrides, until=until)
    return str(error.value)


def test_a_run_gets_its_composition_and_is_waited_for(program, tmp_path):
    program("time.sleep(0.1); print(sys.argv[1:])")
    words = [f"--config-path={tmp_path}", "--config-name=composition", "resume=auto"]
    assert str(words) in play(tmp_path, "resume=auto")


def test_a_run_that_fails_is_quoted(program, tmp_path):
    program(
        'logging.error("another one"); logging.error("size must be above 0, got 0\\nlower it"); '
        'logging.warning("afterwards"); sys.exit(2)'
    )
    assert failure(tmp_path) == "size must be above 0, got 0\nlower it"


def test_of_a_run_that_fails_without_an_error_of_ours_the_first_exception_is_quoted(program, tmp_path):
    program('print("RuntimeError: nobody foresaw this\\nRuntimeError: connection lost\\nset a variable"); sys.exit(1)')
    said = failure(tmp_path)
    assert said.startswith("the run ended with exit status 1 before its end; it said, in ")
    assert said.endswith(": RuntimeError: nobody foresaw this")


def test_an_error_of_an_earlier_start_is_not_quoted(program, tmp_path):
    program(
        '"again" in sys.argv and sys.exit(3)\n'
        'logging.error("old")\n'
        f'open({str(tmp_path / "there")!r}, "w")\n'
        "time.sleep(60)"
    )
    said = failure(tmp_path, until="there")
    assert "old" not in said
    assert "exit status 3" in said


def test_a_run_that_ends_before_something_has_happened_has_failed(program, tmp_path):
    program("")
    assert "ended with exit status 0 before iteration 2" in failure(tmp_path, until="iteration 2")


def test_a_run_that_takes_too_long_is_given_up(program, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "PATIENCE_S", 0.5)
    program("time.sleep(60)")
    assert failure(tmp_path).startswith("the run did not come to its end within")


def test_a_process_that_outlives_its_run_is_found_and_ended(program, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "GRACE_S", 0.5)
    pid = tmp_path / "pid"
    program(
        'child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])\n'
        f'open({str(pid)!r}, "w").write(str(child.pid))'
    )
    assert failure(tmp_path) == "the run came to its end and left 1 processes running"
    left = Path(f"/proc/{pid.read_text()}/stat")
    assert not left.exists() or left.read_text().rpartition(") ")[2][0] == "Z"


def test_a_rehearsal_is_led_to_no_other_session_or_cluster(program, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("ARPO_SESSION", "another")
    monkeypatch.setenv("ARPO_OSWORLD_TASKS", "/data")
    program('print(sorted(set(os.environ) & {"RAY_ADDRESS", "ARPO_SESSION", "ARPO_OSWORLD_TASKS"}))')
    assert "['ARPO_OSWORLD_TASKS']" in play(tmp_path)
