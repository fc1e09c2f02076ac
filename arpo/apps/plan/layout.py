"""The division of GPUs between trainers and engines."""

from dataclasses import dataclass
from typing import Literal, get_args

from arpo.errors import ConfigError

Strategy = Literal["single", "ddp", "fsdp"]
Division = Literal["split", "colocated"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of GPUs that train, and of those that serve.

    Raises:
        ConfigError: If the division does not exist, or leaves no GPU for one of the two.
    """

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

    def __post_init__(self) -> None:
        if self.name not in get_args(Division):
            raise ConfigError(f"layout must be one of {', '.join(get_args(Division))}, got {self.name!r}")
        if self.gpus < 1 or self.gpus % self.nodes:
            raise ConfigError(f"gpus={self.gpus} must be a multiple of {self.nodes}, the number of nodes, above 0")
        if self.name == "split" and self.gpus <= self.engine_gpus:
            raise ConfigError(
                f"gpus={self.gpus} leaves none to train, because {self.engine_gpus} serve: take layout=colocated"
            )

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
