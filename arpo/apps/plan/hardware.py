"""The GPUs of a plan: memory, speed and links, as their makers state them, and their division between two uses."""

from dataclasses import dataclass
from typing import Literal

from arpo.bounds import Positive, checked

GIB = 2**30

Strategy = Literal["single", "ddp", "fsdp"]
Division = Literal["split", "colocated"]


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_gib: Positive
    """GiB that a program can allocate, which is less than the GB in the name."""
    bf16_tflops: Positive
    """Dense multiplications and additions in bfloat16, in 10^12 a second."""
    peer_gb_s: Positive
    """GB a second to another GPU of the node, in one direction."""
    host_gb_s: Positive
    """GB a second to the host's memory, in one direction."""
    network_gb_s: Positive
    """GB a second to another node, a GPU."""


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeeds:
    """The speeds at which a host's processes move weights, in GB a second."""

    store: Positive
    """Into Ray's object store."""
    pageable: Positive
    """From the object store to a GPU; its memory is not pinned."""
    nodes: Positive
    """Between the object stores of two nodes."""
    sleep: Positive
    """From a GPU to the host, as an engine goes to sleep with its weights."""
    wake: Positive
    """And back."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of GPUs that train, and of those that serve, as the rules let them be shared out."""

    name: Division
    """`split`: a GPU trains or serves. `colocated`: every GPU does both in turn."""
    strategy: Strategy
    gpus: int
    """Of all nodes."""
    nodes: int
    engine_gpus: int
    """GPUs of the engines; with `colocated` it has no effect."""
    gpus_of_engine: int = 1
    """GPUs over which an engine divides its weights (tensor parallelism)."""

    @property
    def trainers(self) -> int:
        """Training processes, one a GPU."""
        if self.strategy == "single":
            return 1
        return self.gpus if self.name == "colocated" else self.gpus - self.engine_gpus

    @property
    def engines(self) -> int:
        """GPUs that serve."""
        return self.gpus if self.name == "colocated" else self.engine_gpus

    @property
    def replicas(self) -> int:
        """Engines."""
        return max(1, self.engines // self.gpus_of_engine)
