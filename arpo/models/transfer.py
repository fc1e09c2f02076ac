"""Tensors on their way to a device."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return the tensor on a device, without waiting for what the device computes meanwhile.

    A copy from memory that the system may move would wait: to a GPU, a tensor goes through pinned memory.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
