"""The GPUs of a plan: memory, speed and the links between them, as their makers state them."""

from dataclasses import asdict, dataclass

from arpo.errors import ConfigError, check_positive

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Raises:
        ConfigError: If a number is not above 0.
    """

    name: str
    memory_gib: float
    """GiB that a program can allocate, which is less than what the name says in GB."""
    bf16_tflops: float
    """Dense multiplications and additions in bfloat16, in 10^12 a second."""
    peer_gb_s: float
    """GB a second to another GPU of the node, in one direction."""
    host_gb_s: float
    """GB a second to the host's memory, in one direction."""
    network_gb_s: float
    """GB a second to another node, a GPU."""

    def __post_init__(self) -> None:
        for name in ("memory_gib", "bf16_tflops", "peer_gb_s", "host_gb_s", "network_gb_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} of a GPU must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpeeds:
    """The speeds at which a host's processes move weights, in GB a second.

    Raises:
        ConfigError: If one is not above 0.
    """

    store: float
    """Into Ray's object store."""
    pageable: float
    """From the object store to a GPU; its memory is not pinned."""
    nodes: float
    """Between the object stores of two nodes."""
    sleep: float
    """From a GPU to the host, as an engine goes to sleep with its weights."""
    wake: float
    """And back."""

    def __post_init__(self) -> None:
        check_positive(**asdict(self))
