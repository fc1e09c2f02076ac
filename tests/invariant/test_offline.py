"""Two processes learn offline what one learns: each computes a part of the same batches."""

import pickle

import pytest
import torch
from torch.testing import assert_close

from tests.invariant.offline import CASES, WAYS
from tests.invariant.running import run_module

pytestmark = [pytest.mark.slow, pytest.mark.long]
in_cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def trained(make_group, tiny_model, tmp_path_factory):
    """Tells what each rank of a way to train ended with in a case; of three batches, one is a single pair."""
    directory = tmp_path_factory.mktemp("offline")
    groups = [make_group(1.0, 0.0, first=first) for first in (0, 2, 5, 8, 11)]
    pairs = [list(group.trajectories) for group in groups]
    batches = [pairs[0] + pairs[1], pairs[2], pairs[3] + pairs[4] + pairs[0]]
    (directory / "batches").write_bytes(pickle.dumps(batches))

    run_module("offline", tiny_model, directory / "batches", directory / "out", *CASES)
    ranks = dict(WAYS)
    return lambda case, way: [
        torch.load(directory / f"out.{case}.{way}{ranks[way]}.{rank}") for rank in range(ranks[way])
    ]


@pytest.mark.parametrize(("way", "ranks"), WAYS[1:])
@in_cases
def test_two_ranks_end_with_the_weights_of_one_and_log_the_same(trained, case, way, ranks):
    (alone,), several = trained(case, "one"), trained(case, way)
    assert "train/loss" in alone["metrics"]
    for result in several:
        assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-3, abs=1e-5)
        for name, weight in alone["weights"].items():
            assert_close(result["weights"][name], weight, rtol=0, atol=1e-5)


@in_cases
def test_something_was_learned(trained, case):
    losses = {"sft": 6.0, "dpo": 0.69, "kto": 0.5, "lora": 0.69}
    assert trained(case, "one")[0]["metrics"]["train/loss"] < losses[case]
