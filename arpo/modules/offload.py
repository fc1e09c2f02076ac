"""The moments of AdamW in the host's memory, where they wait until their weight is updated."""

from collections.abc import Callable
from mmap import mmap
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW
from typing_extensions import override

from arpo.modules.base import loss_of

LARGE = 2**20
"""Bytes from which on a tensor gets pages of its own."""


class OffloadedAdamW(AdamW):
    """AdamW (arXiv 1711.05101) that takes 8 bytes a parameter of the host in the place of the device.

    The numbers are those of `torch.optim.AdamW`: a step is one of its steps for each parameter, whose moments are
    copied to the device and back. With a shard of the weights these are the moments of the shard. Between steps, and
    so in checkpoints, everything is on the host.
    """

    host = torch.device("cpu")
    """Where moments wait."""

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = loss_of(closure)
        groups = self.param_groups
        try:
            for group in groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.param_groups = [group | {"params": [parameter]}]
                        self._step_alone(parameter)
        finally:
            self.param_groups = groups
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # a moment may be read on the host next, and its copy be under way
        return loss

    @override
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # which brings everything to the device
        for parameter, state in self.state.items():
            self.state[parameter] = {name: self._put(value, None) for name, value in state.items()}

    @torch.no_grad()
    def _step_alone(self, parameter: Tensor) -> None:
        waiting = self.state.get(parameter, {})
        self.state[parameter] = {
            name: value  # a count of steps stays on the host
            if value.ndim == 0
            else torch.empty_like(value, device=parameter.device).copy_(value, non_blocking=True)
            for name, value in waiting.items()
        }
        super().step()
        updated = self.state[parameter]
        self.state[parameter] = {name: self._put(value, waiting.get(name)) for name, value in updated.items()}

    def _put(self, value: Tensor, place: Tensor | None) -> Tensor:
        """Return a state on the host, in its old place if it has one; a count of steps is there already."""
        if value.ndim == 0:
            return value
        if place is None or place.device.type != self.host.type:
            place = _pinned_like(value, self.host)
        return place.copy_(value, non_blocking=True)


def _pinned_like(value: Tensor, host: torch.device) -> Tensor:
    """Return room for a tensor on the host; a GPU copies at full speed from and to pinned memory only."""
    if not value.is_cuda:
        return torch.empty_like(value, device=host)
    if _own(value).nbytes < LARGE:
        return torch.empty_like(value, device=host, pin_memory=True)
    # torch's allocator of pinned memory rounds up to powers of two: for most weights of a 7B, to twice as much.
    room = torch.empty_like(value, device=host)
    memory = _in_pages(_own(room))
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 1))  # 1: for all contexts
    finalize(memory, runtime.cudaHostUnregister, memory.data_ptr()).atexit = False
    return room


def _in_pages(tensor: Tensor) -> Tensor:
    """Move a tensor that is not filled yet to pages of memory that nothing else is in, and return it."""
    tensor.data = torch.frombuffer(mmap(-1, tensor.nbytes), dtype=tensor.dtype).view_as(tensor)
    return tensor


def _own(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
