"""What a run must have left when it was killed, and when it came to its end."""

import json
import zipfile
from pathlib import Path

import pytest

from arpo.apps.rehearsal.harness import RehearsalError
from arpo.apps.rehearsal.review import check_end, checkpoint_to_resume_from, iterations_on_disk, summary


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
    assert iterations_on_disk(run_dir) == 1
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert iterations_on_disk(run_dir) == 1
    assert iterations_on_disk(tmp_path / "nowhere") == 0


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
