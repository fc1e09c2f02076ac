"""Tensors that leave a device or stay where they are."""

import pytest
import torch

from arpo.models.transfer import to_host


def test_a_tensor_that_is_on_the_host_is_not_copied() -> None:
    tensor = torch.ones(3)
    assert to_host(tensor) is tensor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_tensor_of_a_gpu_arrives_in_pinned_memory() -> None:
    tensor = torch.randn(1000, 1000, dtype=torch.bfloat16, device="cuda")
    found = to_host(tensor)
    assert found.is_pinned()
    assert torch.equal(found, tensor.cpu())
