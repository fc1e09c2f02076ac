"""Screenshots as bytes in the order of the vision tower's patches; light, because worker processes import it."""

import io
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from arpo.agent.actions import smart_resize

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches of a picture."""


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """The sizes that a checkpoint's image processor works with."""

    patch_size: int
    """Pixels along the side of a patch."""
    merge_size: int
    """Patches along the side of a visual token."""
    min_pixels: int
    max_pixels: int

    @property
    def factor(self) -> int:
        """The pixels along the side of a visual token."""
        return self.patch_size * self.merge_size

    def model_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of a screenshot as the model sees it, in pixels."""
        rows, columns = smart_resize(
            height, width, factor=self.factor, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )
        return columns, rows

    def grid(self, width: int, height: int) -> Grid:
        """Return frames, rows and columns of patches of a screenshot."""
        columns, rows = self.model_size(width, height)
        return 1, rows // self.patch_size, columns // self.patch_size


@dataclass(frozen=True, slots=True, eq=False)
class PackedPatches:
    """One screenshot as bytes, in the order of the patches: an eighth of the floats, which hold every frame twice."""

    pixels: UInt8[Tensor, "patches channels height width"]
    grid: Grid


@dataclass(frozen=True, slots=True, eq=False)
class ImagePatches:
    """One screenshot as the vision tower reads it."""

    pixel_values: Float[Tensor, "patches features"]
    grid: Grid


def normalized_films(
    pixels: UInt8[Tensor, "patches channels height width"],
    mean: Float[Tensor, "channels 1"],
    std: Float[Tensor, "channels 1"],
    frames: int,
) -> Float[Tensor, "patches features"]:
    """Return patches as the vision tower wants them: less the mean, divided by std, each as a film of equal frames."""
    centred = torch.sub(pixels.flatten(2), mean).div_(std)
    return centred.unsqueeze(2).expand(-1, -1, frames, -1).flatten(1)


def decode(png: bytes, settings: PatchSettings) -> PackedPatches:
    """Return a screenshot resized and cut into patches, equal bit for bit to the checkpoint's own image processor."""
    with Image.open(io.BytesIO(png)) as image:
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    patch, merge = settings.patch_size, settings.merge_size
    grid = settings.grid(pixels.shape[2], pixels.shape[1])
    rows, columns = grid[1:]
    if pixels.shape[1:] != (rows * patch, columns * patch):  # as torchvision resizes, in whole bytes
        size = (rows * patch, columns * patch)
        pixels = interpolate(pixels[None], size, mode="bicubic", align_corners=False, antialias=True)[0]
    blocks = pixels.reshape(3, rows // merge, merge, patch, columns // merge, merge, patch)
    # Rows of blocks, blocks of a row, then the patches of a block: those that the merger joins lie together.
    return PackedPatches(blocks.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, patch, patch), grid)


def picture_size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG as its header says."""
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
