"""Screenshots as bytes in the order of the vision tower's patches; light, because worker processes import it."""

import io
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from arpo.agent.coordinates import smart_resize


@dataclass(frozen=True, slots=True)
class PatchSettings:
    """The sizes that a checkpoint's image processor works with."""

    patch_size: int
    """Pixels along the side of a patch."""
    merge_size: int
    """Patches along the side of a visual token."""
    min_pixels: int
    max_pixels: int

    def grid(self, width: int, height: int) -> tuple[int, int, int]:
        """Return frames, rows and columns of patches of a screenshot."""
        rows, columns = smart_resize(
            height,
            width,
            factor=self.patch_size * self.merge_size,
            min_pixels=self.min_pixels,
            max_pixels=self.max_pixels,
        )
        return 1, rows // self.patch_size, columns // self.patch_size


@dataclass(frozen=True, slots=True, eq=False)
class PackedPatches:
    """One screenshot as bytes, in the order of the patches: an eighth of the floats, which hold every frame twice."""

    pixels: UInt8[Tensor, "patches channels height width"]
    grid: tuple[int, int, int]


def decode(png: bytes, settings: PatchSettings) -> PackedPatches:
    """Return a screenshot resized and cut into patches, equal bit for bit to the checkpoint's own image processor.

    Raises:
        OSError: If the bytes are no picture; Pillow raises SyntaxError and ValueError for some, too.
    """
    with Image.open(io.BytesIO(png)) as image:
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    patch, merge = settings.patch_size, settings.merge_size
    grid = settings.grid(pixels.shape[2], pixels.shape[1])
    rows, columns = grid[1:]
    resized = resized_bytes(pixels, rows * patch, columns * patch)
    blocks = resized.reshape(3, rows // merge, merge, patch, columns // merge, merge, patch)
    # Rows of blocks, blocks of a row, then the patches of a block: those that the merger joins lie together.
    return PackedPatches(blocks.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, patch, patch), grid)


def resized_bytes(
    pixels: UInt8[Tensor, "channels height width"], height: int, width: int
) -> UInt8[Tensor, "channels new_height new_width"]:
    """Return a picture resized by an antialiased bicubic filter, in whole bytes, as torchvision resizes it."""
    if pixels.shape[1:] == (height, width):
        return pixels
    return torch.nn.functional.interpolate(
        pixels.unsqueeze(0), (height, width), mode="bicubic", align_corners=False, antialias=True
    ).squeeze(0)


def picture_size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG as its header says."""
    return int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
