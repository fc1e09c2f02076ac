"""Two processes learn what one learns."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from arpo.types import RolloutBatch
from tests.invariant.ddp_worker import ESTIMATORS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trained(make_group, tiny_model, tmp_path):
    """Three iterations on some ranks: many samples, few and none for one of them, and nothing to learn at all."""
    many = [make_group(1.0, 0.0, 0.0, 0.0, 1.0), make_group(0.0, 1.0, first=5), make_group(1.0, 0.0, first=7)]
    batches = [
        RolloutBatch(0, 0, many),
        RolloutBatch(1, 1, [make_group(1.0, 0.0, 0.0, first=9), make_group(0.0, 0.0, first=9)]),
        RolloutBatch(2, 2, [make_group(0.0, 0.0, first=13), make_group(1.0, 1.0, first=15)]),
    ]
    (tmp_path / "batches").write_bytes(pickle.dumps(batches))
    arguments = [tiny_model, tmp_path / "batches", tmp_path / "out"]
    command = [sys.executable, "-m", "tests.invariant.ddp_worker", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        (estimator, ranks): [
            torch.load(tmp_path / f"out.{estimator}.{ranks}.{rank}", weights_only=True) for rank in range(ranks)
        ]
        for estimator in ESTIMATORS
        for ranks in (1, 2)
    }


@pytest.mark.slow
def test_two_ranks_end_with_the_weights_of_one_and_log_what_was_measured_on_both(trained):
    for estimator in ESTIMATORS:
        (alone,), (first, second) = trained[estimator, 1], trained[estimator, 2]
        assert alone["version"] == first["version"] == second["version"] == 3
        for name, weight in alone["weights"].items():
            assert torch.equal(first["weights"][name], second["weights"][name])
            assert_close(first["weights"][name], weight, rtol=0, atol=1e-6)
        for one, two, three in zip(alone["metrics"], first["metrics"], second["metrics"], strict=True):
            for metrics in (one, two, three):
                del metrics["time/update"]
            assert two == three
            assert two == pytest.approx(one, rel=1e-4, abs=1e-6)
