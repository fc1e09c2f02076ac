"""A policy in shards computes, sends and saves what a whole one does, and is never whole on its way in."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arpo.errors import ConfigError
from arpo.models.policy import Policy
from arpo.models.sharding import CheckpointWeights

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.long
def test_two_shards_are_one_policy(each_tiny, tmp_path):
    command = [sys.executable, "-m", "tests.models.sharded", str(each_tiny), str(tmp_path / "policy")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = zip(Policy(tmp_path / "policy").parameters(), Policy(each_tiny).parameters(), strict=True)
    assert all(torch.equal(saved, first * 1.5) for saved, first in pairs)


def test_weights_have_their_published_names_and_those_of_the_model(tiny_model):
    weights = CheckpointWeights(tiny_model)
    whole = dict(Policy(tiny_model).checkpoint_tensors())
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.items())
    assert weights.shapes == {name: tuple(tensor.shape) for name, tensor in whole.items()}
    norm = weights["model.language_model.norm.weight"]
    assert torch.equal(norm, whole["model.norm.weight"])


def test_a_weight_that_is_not_there_is_named(tiny_model):
    with pytest.raises(ConfigError, match=r"has no weight lm_head\.bias"):
        CheckpointWeights(tiny_model)["lm_head.bias"]


def test_a_directory_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        CheckpointWeights(tmp_path)
