"""Places of tensors: a policy in shards is the whole one, and is never whole on its way in."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from arpo.models.placement import to_host
from arpo.models.policy import Policy

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.long
def test_two_shards_are_one_policy(each_tiny, tmp_path):
    command = [sys.executable, "-m", "tests.models.sharded", str(each_tiny), str(tmp_path / "policy")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = zip(Policy(tmp_path / "policy").parameters(), Policy(each_tiny).parameters(), strict=True)
    assert all(torch.equal(saved, first * 1.5) for saved, first in pairs)


def test_a_tensor_that_is_on_the_host_is_not_copied():
    tensor = torch.ones(3)
    assert to_host(tensor) is tensor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_of_a_gpu_arrives_in_pinned_memory():
    tensor = torch.randn(1000, 1000, dtype=torch.bfloat16, device="cuda")
    found = to_host(tensor)
    assert found.is_pinned()
    assert torch.equal(found, tensor.cpu())
