"""A checksum of weights that is the same however an engine cuts, fuses and pads them.

Each element counts by a hash of its bits, and a checksum is the sum of these hashes modulo 2^64. A sum has no order:
the slices of a fused tensor, or the shards of several GPUs, add up to the tensors that they were made of. A zero
counts 0, so padding changes nothing. Each layer counts by an odd factor of its own, so that two of them cannot be
exchanged. Weights of which a single bit is another one have the same checksum once in about 2^64 times.
"""

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

MODULUS = 2**64
CHUNK = 2**22
"""Elements that a GPU hashes at a time: 0.1 GB of its memory."""
CPU_CHUNK = 2**16
"""Elements that a CPU hashes at a time: as many as its caches hold, which is 10 times as fast as `CHUNK`."""
FACTORS = (0x9E3779B1, 0x5851F42D4C957F2D)
"""Odd numbers with about as many ones as zeros."""
_LAYER = re.compile(r"(?:layers|blocks)\.(\d+)\.")


def checksum(tensor: Tensor) -> Tensor:
    """Return the checksum of a tensor's values in float32, as one int64 on its device."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    chunk = CPU_CHUNK if tensor.device.type == "cpu" else CHUNK
    for values in tensor.detach().reshape(-1).split(chunk):  # type: ignore[no-untyped-call]
        mixed = values.float().view(torch.int32).long() * FACTORS[0]
        mixed = (mixed ^ (mixed >> 29)) * FACTORS[1]
        total += (mixed ^ (mixed >> 32)).sum()
    return total


def together(checksums: Iterable[tuple[str, Tensor]]) -> int:
    """Return the checksum of several tensors by the name and the checksum of each, on the host."""
    return sum((2 * _layer(name) + 1) * int(each) for name, each in checksums) % MODULUS


def _layer(name: str) -> int:
    """Return the number of a weight's layer, which stands in its name in a checkpoint and in an engine; 0 without."""
    found = _LAYER.search(name)
    return int(found[1]) if found else 0


class ChecksummedTensors:
    """The tensors of an update on their way into an engine, and the checksum that it should have afterwards.

    Attributes:
        names: Of the tensors so far.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
        """Take the tensors.

        Args:
            tensors: By their names in the checkpoint.
            dtype: The format in which the engine keeps them.
        """
        self.names: list[str] = []
        self._tensors = tensors
        self._dtype = dtype
        self._checksums: list[Tensor] = []

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._tensors:
            self.names.append(name)
            # A fleet's tensors are in host memory, where one thread hashes a 7B in a minute, and a GPU in seconds.
            held = tensor if tensor.is_cuda or not torch.cuda.is_available() else tensor.cuda()
            self._checksums.append(checksum(held.to(self._dtype)))
            yield name, tensor

    @property
    def checksum(self) -> int:
        """The checksum of the tensors so far."""
        return together(zip(self.names, self._checksums, strict=True))
