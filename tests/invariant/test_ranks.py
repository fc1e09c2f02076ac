"""Two processes learn what one learns."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from arpo.types import RolloutBatch

ROOT = Path(__file__).parents[2]
TIMES = ("time/update",)


@pytest.fixture
def train(make_group, tiny_model, tmp_path):
    """Three iterations on some ranks: many samples, few and none for one of them, and nothing to learn at all."""
    many = [make_group(1.0, 0.0, 0.0, 0.0, 1.0), make_group(0.0, 1.0, first=5), make_group(1.0, 0.0, first=7)]
    batches = [
        RolloutBatch(0, 0, many),
        RolloutBatch(1, 1, [make_group(*rewards, first=9) for rewards in ((1.0, 0.0), (0.0, 0.0))]),
        RolloutBatch(2, 2, [make_group(0.0, 0.0, first=13), make_group(1.0, 1.0, first=15)]),
    ]
    (tmp_path / "batches").write_bytes(pickle.dumps(batches))

    def run(ranks: int, estimator: str) -> list[dict]:
        out = tmp_path / f"out{ranks}"
        arguments = [tiny_model, tmp_path / "batches", out, ranks, estimator]
        command = [sys.executable, "-m", "tests.invariant.ddp_worker", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [torch.load(f"{out}.{rank}", weights_only=True) for rank in range(ranks)]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["grpo", "pass_at_k"])  # the latter leaves one sample for two ranks
def test_two_ranks_end_with_the_weights_and_the_metrics_of_one(train, estimator):
    (alone,), (first, second) = train(1, estimator), train(2, estimator)
    assert first["version"] == second["version"] == 3
    for name, weight in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        assert_close(first["weights"][name], weight, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    for one, two, three in zip(alone["metrics"], first["metrics"], second["metrics"], strict=True):
        for name in one.keys() - TIMES:
            assert two[name] == pytest.approx(one[name], abs=1e-5), name
        assert two.keys() == three.keys() == one.keys()
