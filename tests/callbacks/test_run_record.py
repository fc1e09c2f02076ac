"""What a run leaves behind about itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from arpo.callbacks.run_record import RunRecord, git_state, machine
from tests.callbacks.support import IdleModule, fit


def starts(directory: Path) -> list[dict]:
    return json.loads((directory / "run.json").read_text())["starts"]


def test_every_start_of_a_run_tells_code_packages_machine_and_command_and_how_it_ended(
    tmp_path: Path, make_collector
) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fit(tmp_path, make_collector(), [RunRecord(tmp_path)], module=IdleModule(at_step=fail))
    fit(tmp_path, make_collector(directory="second"), [RunRecord(tmp_path)])
    first, entry = starts(tmp_path)
    assert [first["status"], entry["status"]] == ["RuntimeError: boom", "finished"]
    assert entry["packages"]["lightning"].startswith("2.")
    assert entry["machine"]["cores"] >= 1
    assert entry["command"]
    assert entry["environment"]["OMP_NUM_THREADS"] == os.environ["OMP_NUM_THREADS"]


def test_a_run_that_was_asked_to_stop_says_where(tmp_path: Path, make_collector) -> None:
    module = IdleModule()
    module.at_step = lambda: setattr(module.trainer, "should_stop", True)
    fit(tmp_path, make_collector(), [RunRecord(tmp_path)], module=module, iterations=5)
    assert starts(tmp_path)[0]["status"] == "stopped after iteration 1"


def test_the_state_of_a_checkout_is_its_commit_and_whether_files_differ(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--no-verify", "-m", "one")
    state = git_state(tmp_path)
    assert state is not None
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == state | {"dirty": True}


def test_cores_are_those_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine()["cores"] == 1
    finally:
        os.sched_setaffinity(0, allowed)
