"""Whole rehearsals, as a person types them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATIENCE_S = 800.0


def rehearse(output: Path, *overrides: str) -> tuple[int, str]:
    """Return the exit status, and everything that was said."""
    command = [sys.executable, "-m", "arpo", "rehearse", *overrides, f"paths.output={output}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return done.returncode, done.stdout + done.stderr


def check_played(experiment: str, output: Path, *overrides: str, episodes: int | None) -> None:
    """Check that an experiment is played, killed, and played to its end; None where luck says how many episodes."""
    code, said = rehearse(output, f"experiment={experiment}", *overrides)
    assert code == 0, said
    assert f"The rehearsal of {experiment} passed" in said
    assert "It was killed (kill -9) in iteration 3, and goes on from iteration_00000" in said
    assert f"3 iterations, {'' if episodes is None else f'{episodes} episodes'}" in said
