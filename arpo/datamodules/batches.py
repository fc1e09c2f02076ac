"""Batches that are made when they are wanted."""

from collections.abc import Callable, Iterator

from torch.utils.data import IterableDataset
from typing_extensions import override

from arpo.types import Trajectory


class Batches(IterableDataset[list[Trajectory]]):
    """A known number of batches, for a `DataLoader` that passes them on as they are.

    Args:
        make: Begins an iteration over them.
        count: Their number. Lightning would fetch one ahead if it did not know it.
    """

    def __init__(self, make: Callable[[], Iterator[list[Trajectory]]], count: int) -> None:
        self._make = make
        self._count = count

    def __len__(self) -> int:
        return self._count

    @override
    def __iter__(self) -> Iterator[list[Trajectory]]:
        return self._make()
