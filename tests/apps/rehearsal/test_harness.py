"""The harness of a rehearsal: the error of a run that fails, that none is left, and what a run must have left."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from arpo.apps.rehearsal import harness
from arpo.apps.rehearsal.harness import (
    RehearsalError,
    check_end,
    checkpoint_to_resume_from,
    harnessed,
    iterations_of,
    summary,
)

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


def test_a_run_gets_its_composition_and_is_led_to_no_other_session_or_cluster(program, tmp_path, monkeypatch):
    program("time.sleep(0.1); print(sys.argv[1:])")
    words = [f"--config-path={tmp_path}", "--config-name=composition", "resume=auto"]
    assert str(words) in play(tmp_path, "resume=auto")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("ARPO_SESSION", "another")
    monkeypatch.setenv("ARPO_OSWORLD_TASKS", "/data")
    program('print(sorted(set(os.environ) & {"RAY_ADDRESS", "ARPO_SESSION", "ARPO_OSWORLD_TASKS"}))')
    assert "['ARPO_OSWORLD_TASKS']" in play(tmp_path)


FAILURES = {
    "sys.exit(2)": (r"size must be above 0, got 0\nlower it", ""),
    # of a run without an error of ours the first exception
    'print("RuntimeError: first\\nRuntimeError: connection lost\\nset a variable"); sys.exit(1)': (
        r"the run ended with exit status 1 before its end; /.*: RuntimeError: first",
        "",
    ),
    "": (r".*ended with exit status 0 before iteration 2.*", "iteration 2"),
    "time.sleep(60)": (r"the run did not come to its end within .*", ""),
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_run_that_fails_or_takes_too_long_is_quoted(program, tmp_path, monkeypatch, code):
    own = (
        'logging.error("another"); logging.error("size must be above 0, got 0\\nlower it"); logging.warning("then"); '
    )
    monkeypatch.setattr(harness, "PATIENCE_S", 0.5 if "sleep" in code else harness.PATIENCE_S)
    program(own * (code == "sys.exit(2)") + code)
    said, until = FAILURES[code]
    assert re.fullmatch(said, failure(tmp_path, until=until), re.DOTALL)


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


def left(run_dir: Path, *steps: int, checkpoints: tuple[int, ...] = (3,)) -> Path:
    """A folder as a run leaves it, with iteration 0, which is the evaluation at the start."""
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    values = {"train/grad_norm": 1.0, "engine/logprob_gap_mean": 0.01, "rollout/episodes": 16, "replay/injected": 1}
    lines = [{"step": 0}, *({"step": step} | values for step in steps)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for iteration in checkpoints:
        with zipfile.ZipFile(run_dir / "checkpoints" / f"iteration_{iteration:06d}.ckpt", "w") as archive:
            archive.writestr("data", b"weights")
    return run_dir


def wrong(run_dir: Path) -> str:
    with pytest.raises(RehearsalError) as error:
        check_end(run_dir, 3)
    return str(error.value)


def test_a_run_whose_iterations_count_once_and_took_a_step_has_nothing_wrong(tmp_path):
    run_dir = left(tmp_path / "right", 1, 2, 3)
    check_end(run_dir, 3)
    assert summary(run_dir) == "3 iterations, 48 episodes of 0 steps, 3 replayed, a gap of 0.01 at most"
    metrics = run_dir / "metrics.jsonl"
    text = metrics.read_text()
    metrics.write_text(text.replace("train/grad_norm", "train/other", 1))
    check_end(run_dir, 3)  # in one of them no group had a gradient
    metrics.write_text(text.replace("train/grad_norm", "train/other"))
    assert wrong(run_dir) == "no iteration took an optimizer step"
    for steps, counted in (((1, 3), "1, 3"), ((1, 2, 2, 3), "1, 2, 2, 3"), ((), "none")):
        assert f"must have each of 3 iterations once, and has {counted}" in wrong(left(tmp_path / counted, *steps))
    metrics.write_text(text + '{"step": 4')
    assert len(iterations_of(run_dir)) == 3  # one in the making is none
    assert iterations_of(tmp_path / "nowhere") == []


def test_a_checkpoint_that_is_damaged_or_too_old_is_found(tmp_path):
    assert "the newest checkpoint is iteration_000002.ckpt" in wrong(left(tmp_path / "old", 1, 2, 3, checkpoints=(2,)))
    assert "the newest checkpoint is none" in wrong(left(tmp_path / "none", 1, 2, 3, checkpoints=()))
    run_dir = left(tmp_path / "damaged", 1, 2, 3)
    (run_dir / "checkpoints" / "iteration_000003.ckpt").write_bytes(b"half")
    assert "iteration_000003.ckpt is damaged" in wrong(run_dir)


def test_a_run_that_was_killed_goes_on_from_its_newest_whole_checkpoint_and_without_one_has_failed(tmp_path):
    run_dir = left(tmp_path / "two", 1, 2, checkpoints=(1, 2))
    (run_dir / "checkpoints" / "iteration_000002.ckpt").write_bytes(b"half")
    assert checkpoint_to_resume_from(run_dir).name == "iteration_000001.ckpt"
    words = r"killed after 2 iterations and has no checkpoint .* put callbacks\.checkpoint"
    with pytest.raises(RehearsalError, match=words):
        checkpoint_to_resume_from(left(tmp_path / "none", 1, 2, checkpoints=()))
