"""The stretches of patches that attend to each other in Qwen2.5-VL's vision tower: windows, and whole pictures.

Everything here follows from the sizes of the pictures alone and is computed on the host, so that a forward never asks
its device for a number. It is `transformers.vision_utils` for pictures of known size, with equal windows side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches of a picture."""
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segments:
    """Stretches of patches, each of which attends to itself alone, those of one length side by side."""

    runs: tuple[tuple[int, int], ...]
    """Number and length of the stretches of one length, run by run."""
    order: Indices | None
    """The patches in the order of the stretches; None where they lie so already."""

    @classmethod
    def of(cls, lengths: Sequence[int], order: Indices) -> "Segments":
        """Return stretches of these lengths, and leave out an order that changes nothing."""
        runs: list[tuple[int, int]] = []
        for length in lengths:
            if runs and runs[-1][1] == length:
                runs[-1] = (runs[-1][0] + 1, length)
            else:
                runs.append((1, length))
        return cls(tuple(runs), None if np.array_equal(order, np.arange(len(order))) else order)


@dataclass(frozen=True, slots=True, eq=False)
class VisionLayout:
    """The order in which the vision tower sees the patches of some pictures, and what attends to what in it."""

    position_ids: Int64[np.ndarray, "patches 2"]
    """Row and column of each patch, in the pictures' own order."""
    window_index: Int64[np.ndarray, " tokens"]
    """The visual tokens in the order in which the tower sees them."""
    windows: Segments
    pictures: Segments


@lru_cache(maxsize=16)
def vision_layout(grids: tuple[Grid, ...], merge: int, side: int, *, windowed: bool = True) -> VisionLayout:
    """Return the layout of some pictures for attention by `Segments`.

    The windows of all pictures are sorted by their size: a 1080p screenshot has 180 windows of four sizes, and so have
    fifteen of them. The few layers that see whole pictures bring the patches of each together.

    Args:
        grids: Sizes of the pictures in patches.
        merge: Patches that become one visual token, along a side.
        side: Visual tokens along the side of a window.
        windowed: Whether any layer sees windows. Where none does, the windows stay as transformers orders them, and
            every picture is in one piece.
    """
    pieces = _windows(grids, merge, side)
    lengths = np.array([len(piece) for piece in pieces])
    by_size = np.argsort(-lengths, kind="stable") if windowed else np.arange(len(pieces))
    index = np.concatenate([pieces[number] for number in by_size])
    # Where the tower's order has the patches that lie in the pictures' windows one after the other.
    starts = np.concatenate([[0], np.cumsum(lengths[by_size])[:-1]])
    places = np.empty(len(pieces), np.int64)
    places[by_size] = starts
    by_picture = np.concatenate([np.arange(place, place + size) for place, size in zip(places, lengths, strict=True)])
    sizes = [frame for frames, rows, columns in grids for frame in [rows * columns] * frames]
    tokens = np.split(by_picture, np.cumsum(sizes)[:-1] // merge**2)
    largest_first = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    return VisionLayout(
        position_ids=np.concatenate([_positions(grid, merge) for grid in grids]),
        window_index=index,
        windows=Segments.of([int(size) * merge**2 for size in lengths[by_size]], np.arange(len(index) * merge**2)),
        pictures=Segments.of(
            [sizes[number] for number in largest_first],
            _patches(np.concatenate([tokens[number] for number in largest_first]), merge),
        ),
    )


def cumulative_layout(grids: Sequence[Grid], merge: int, side: int) -> dict[str, Any]:
    """Return the same as transformers' own attention takes it: windows picture by picture, and where each begins."""
    pieces = _windows(grids, merge, side)
    lengths = [len(piece) * merge**2 for piece in pieces]
    sizes = [frame for frames, rows, columns in grids for frame in [rows * columns] * frames]
    return {
        "position_ids": np.concatenate([_positions(grid, merge) for grid in grids]),
        "window_index": np.concatenate(pieces),
        "cu_seqlens": np.cumsum([0, *sizes], dtype=np.int32),
        "cu_window_seqlens": np.cumsum([0, *lengths], dtype=np.int32),
        "max_seqlen": max(sizes),
        "max_window_seqlen": max(lengths),
    }


def _patches(tokens: Indices, merge: int) -> Indices:
    """Return the places of the patches of some visual tokens."""
    return (tokens[:, None] * merge**2 + np.arange(merge**2)).reshape(-1)


def _windows(grids: Sequence[Grid], merge: int, side: int) -> list[Indices]:
    """Return the visual tokens of each window, row by row of windows, picture by picture."""
    pieces: list[Indices] = []
    seen = 0
    for frames, rows, columns in grids:
        pieces += [piece + seen for piece in _windows_of_one((frames, rows // merge, columns // merge), side)]
        seen += frames * rows * columns // merge**2
    return pieces


@lru_cache(maxsize=16)
def _windows_of_one(size: Grid, side: int) -> list[Indices]:
    frames, rows, columns = size
    tokens = np.arange(frames * rows * columns).reshape(size)
    return [
        tokens[frame, row : row + side, column : column + side].reshape(-1)
        for frame in range(frames)
        for row in range(0, rows, side)
        for column in range(0, columns, side)
    ]


@lru_cache(maxsize=16)
def _positions(grid: Grid, merge: int) -> Indices:
    """Return row and column of each patch, those of one visual token together."""
    frames, rows, columns = grid
    places = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    return np.tile(places.transpose(0, 1, 3, 2, 4).reshape(2, -1).T, (frames, 1))
