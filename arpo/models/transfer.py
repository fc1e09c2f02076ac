"""Tensors on their way to a device, and back."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return the tensor on a device, without waiting for what the device computes meanwhile.

    A copy from memory that the system may move would wait: to a GPU, a tensor goes through pinned memory.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """Return the tensor on the host, in pinned memory if it comes from a GPU.

    Torch keeps that memory for the tensors after it. Ordinary memory costs a second copy, and its pages are new each
    time.
    """
    if tensor.is_cpu:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)
