"""What goes wrong on rank 0 is heard of on every rank, although the others are gathering weights then."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def ended(model, out, case) -> list[str]:
    """What each of two ranks raised; the other rank's timeout is a minute."""
    command = [sys.executable, "-m", "tests.callbacks.two_ranks", str(model), str(out), case]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [Path(f"{out}.{rank}").read_text() for rank in range(2)]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("refuses", "EngineGoneError: every engine of the fleet is gone"),
        pytest.param("breaks off", "WeightSyncError: the object store is full", marks=pytest.mark.long),
        pytest.param("hangs", "RolloutError: the trainer waits ", marks=pytest.mark.long),
        pytest.param("loop ended", "ArpoError: rollout does not run", marks=pytest.mark.long),
    ],
)
def test_every_rank_hears_why_the_engine_did_not_take_the_weights(tiny_model, tmp_path, case, words):
    first, second = ended(tiny_model, tmp_path / "out", case)
    assert first.startswith(words)
    assert second == "ArpoError: " + first.partition(": ")[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "waits"),
    [("no rollout", "iteration 0"), ("no evaluation", "list; ")],
)
def test_every_rank_hears_why_nobody_plays(tiny_model, tmp_path, case, waits):
    first, second = ended(tiny_model, tmp_path / "out", case)
    assert first.startswith(f"RolloutError: the trainer waits for {waits}")
    assert second == "ArpoError: " + first.partition(": ")[2]


@pytest.mark.long
def test_where_the_gathering_stands_still_rank_0_says_so_and_ends(tiny_model, tmp_path):
    first, second = ended(tiny_model, tmp_path / "out", "gathering stands still")
    assert first.startswith("RolloutError: the trainer waits until the engine serves policy version 1")
    assert "Connection closed by peer" in second
