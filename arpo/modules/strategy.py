"""Training with weights, gradients and optimizer states in shards: Lightning's FSDP2 strategy, set up for us."""

from datetime import timedelta

from lightning.pytorch.strategies import ModelParallelStrategy
from typing_extensions import override


class ShardedStrategy(ModelParallelStrategy):
    """One process a device, each with an equal part of everything that is trained.

    Args:
        timeout: How long a rank waits for the others; the others wait while rank 0 rolls out.
    """

    def __init__(self, timeout: timedelta) -> None:
        super().__init__(data_parallel_size="auto", tensor_parallel_size=1, timeout=timeout)

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning's "auto" is the number of nodes
        super().setup_environment()
