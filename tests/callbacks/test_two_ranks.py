"""What goes wrong on rank 0 is heard of on every rank, although the others are gathering weights then."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WAITS = "RolloutError: the trainer waits "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("breaks off", "WeightSyncError: the object store is full"),
        pytest.param("hangs", WAITS, marks=pytest.mark.long),
        pytest.param("loop ended", "ArpoError: rollout does not run", marks=pytest.mark.long),
        pytest.param("no rollout", f"{WAITS}for iteration 0", marks=pytest.mark.long),
        pytest.param("gathering stands still", WAITS, marks=pytest.mark.long),
    ],
)
def test_every_rank_hears_what_went_wrong_on_rank_0(tiny_model, tmp_path, case, words):
    """The other rank's timeout is a minute."""
    command = [sys.executable, "-m", "tests.callbacks.two_ranks", str(tiny_model), str(tmp_path / "out"), case]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = ((tmp_path / f"out.{rank}").read_text() for rank in range(2))
    assert first.startswith(words)
    if case == "gathering stands still":  # rank 0 says so and ends, and no word reaches the other
        assert "Connection closed by peer" in second
    else:
        assert second == "ArpoError: " + first.partition(": ")[2]
