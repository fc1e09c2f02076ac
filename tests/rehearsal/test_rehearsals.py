"""Whole rehearsals, as a person types them: of the paper's runs, and of runs with a fault."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    """One for all, because a tiny policy is made once for each prompt."""
    return tmp_path_factory.mktemp("outputs")


def rehearse(output: Path, *overrides: str) -> tuple[int, str]:
    """Return the exit status, and everything that was said."""
    command = [sys.executable, "-m", "arpo", "rehearse", *overrides, f"paths.output={output}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("experiment", ["arpo_subset32", "arpo_full"])
def test_the_paper_s_run_is_played_killed_and_played_to_its_end(experiment, output):
    code, said = rehearse(output, f"experiment={experiment}")
    assert code == 0, said
    assert f"The rehearsal of {experiment} passed" in said
    assert "It was killed (kill -9) in iteration 3, and goes on from iteration_000001.ckpt" in said
    assert "3 iterations, 48 episodes" in said  # 2 groups of 8 in each


def test_an_engine_that_does_not_come_up_fails_as_it_would_in_the_real_run(output):
    code, said = rehearse(output, "experiment=arpo_subset32", "+engine.make_engine.engine_args.quantization=fp0")
    assert code == 1
    assert "the rehearsal failed: the engine did not start in its Ray actor" in said


def test_a_run_that_could_not_go_on_after_a_crash_fails(output):
    code, said = rehearse(output, "experiment=smoke", "~callbacks.checkpoint")
    assert code == 1
    assert "the rehearsal failed: the run was killed after 2 iterations and has no checkpoint to go on from" in said


def test_a_run_that_would_be_refused_is_refused_in_the_same_words(output):
    code, said = rehearse(output, "experiment=arpo_subset32", "~callbacks.weight_sync")
    assert code == 2
    assert "no callback sends the policy to the engine" in said
