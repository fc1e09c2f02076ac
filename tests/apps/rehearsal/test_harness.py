"""The harness of a rehearsal: the error of a run that fails, that none is left, and what a run must have left."""

import json
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
    assert said.startswith("the run ended with exit status 1 before its end; /")
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


def left(run_dir: Path, *steps: int, checkpoints: tuple[int, ...] = (3,), **metrics: float | None) -> Path:
    """A folder as a run leaves it, with iteration 0, which is the evaluation at the start."""
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    values = {
        "train/grad_norm": 1.0,
        "engine/logprob_gap_mean": 0.01,
        "rollout/episodes": 16,
        "replay/injected": 1,
    } | metrics
    values = {name.replace("__", "/"): value for name, value in values.items()}
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


def test_a_run_whose_iterations_count_once_has_nothing_wrong(tmp_path):
    run_dir = left(tmp_path, 1, 2, 3)
    check_end(run_dir, 3)
    assert summary(run_dir) == "3 iterations, 48 episodes of 0 steps, 3 replayed, a gap of 0.01 at most"


@pytest.mark.parametrize(("steps", "counted"), [((1, 3), "1, 3"), ((1, 2, 2, 3), "1, 2, 2, 3"), ((), "none")])
def test_an_iteration_that_is_lost_or_counted_twice_is_found(steps, counted, tmp_path):
    assert f"must have each of 3 iterations once, and has {counted}" in wrong(left(tmp_path, *steps))


def test_a_line_in_the_making_is_no_iteration(tmp_path):
    run_dir = left(tmp_path, 1)
    assert len(iterations_of(run_dir)) == 1
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert len(iterations_of(run_dir)) == 1
    assert iterations_of(tmp_path / "nowhere") == []


def test_a_run_without_a_step_is_found(tmp_path):
    run_dir = left(tmp_path, 1, 2, 3)
    text = (run_dir / "metrics.jsonl").read_text()
    (run_dir / "metrics.jsonl").write_text(text.replace("train/grad_norm", "train/other"))
    assert wrong(run_dir) == "no iteration took an optimizer step"
    (run_dir / "metrics.jsonl").write_text(text.replace("train/grad_norm", "train/other", 1))
    check_end(run_dir, 3)  # in one of them no group had a gradient


def test_a_checkpoint_that_is_damaged_or_too_old_is_found(tmp_path):
    assert "the newest checkpoint is iteration_000002.ckpt" in wrong(left(tmp_path / "old", 1, 2, 3, checkpoints=(2,)))
    assert "the newest checkpoint is none" in wrong(left(tmp_path / "none", 1, 2, 3, checkpoints=()))
    run_dir = left(tmp_path / "damaged", 1, 2, 3)
    (run_dir / "checkpoints" / "iteration_000003.ckpt").write_bytes(b"half")
    assert "iteration_000003.ckpt is damaged" in wrong(run_dir)


def test_a_run_that_was_killed_goes_on_from_its_newest_whole_checkpoint(tmp_path):
    run_dir = left(tmp_path, 1, 2, checkpoints=(1, 2))
    (run_dir / "checkpoints" / "iteration_000002.ckpt").write_bytes(b"half")
    assert checkpoint_to_resume_from(run_dir).name == "iteration_000001.ckpt"


def test_a_run_that_was_killed_without_a_checkpoint_has_failed(tmp_path):
    with pytest.raises(
        RehearsalError, match=r"killed after 2 iterations and has no checkpoint .* put callbacks\.checkpoint"
    ):
        checkpoint_to_resume_from(left(tmp_path, 1, 2, checkpoints=()))
