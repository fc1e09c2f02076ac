"""Screenshots as patches for the vision tower, decoded and resized once each."""

from collections import OrderedDict
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor

from arpo.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class ImagePatches:
    """One screenshot as the vision tower reads it."""

    pixel_values: Float[Tensor, "patches features"]
    grid: tuple[int, int, int]
    """Frames, rows and columns of patches."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedPatches:
    """One screenshot as bytes, in the order of the patches: an eighth of the floats, which hold every frame twice."""

    pixels: UInt8[Tensor, "patches channels height width"]
    grid: tuple[int, int, int]


def normalized_films(
    pixels: UInt8[Tensor, "patches channels height width"],
    mean: Float[Tensor, "channels 1"],
    std: Float[Tensor, "channels 1"],
    frames: int,
) -> Float[Tensor, "patches features"]:
    """Return patches as the vision tower wants them: normalized, each as a film of equal frames.

    Args:
        pixels: Patches as bytes, on any device.
        mean: Subtracted from the bytes.
        std: Divides what is left.
        frames: How often a patch is repeated.
    """
    centred = torch.sub(pixels.flatten(2), mean).div_(std)
    return centred.unsqueeze(2).expand(-1, -1, frames, -1).flatten(1)


class ImageProcessor:
    """A maker of patches from screenshots, equal bit for bit to the checkpoint's own image processor.

    Resized screenshots are kept by key, least recently used dropped first, so that every step of an episode, every
    update of the batch share one decoding. Safe to call from several threads.

    Args:
        path: A directory or hub name that `from_pretrained` loads.
        cache_mb: Megabytes of screenshots to keep: 1080p takes 6.3.

    Raises:
        ConfigError: If the cache size is negative.
    """

    def __init__(self, path: str | Path, *, cache_mb: float = 1024) -> None:
        if cache_mb < 0:
            raise ConfigError(f"cache_mb must be at least 0, got {cache_mb}")
        self._processor = AutoImageProcessor.from_pretrained(path)
        self.merge_size: int = self._processor.merge_size
        scale = self._processor.rescale_factor
        # Rescaling and normalizing in one step, as the checkpoint's processor does it.
        self.mean: Float[Tensor, "channels 1"] = torch.tensor(self._processor.image_mean).mul(1 / scale).view(3, 1)
        self.std: Float[Tensor, "channels 1"] = torch.tensor(self._processor.image_std).mul(1 / scale).view(3, 1)
        self._capacity = cache_mb * 2**20
        self._cache: OrderedDict[str, PackedPatches] = OrderedDict()
        self._cached_bytes = 0
        self._lock = Lock()
        self.decoded = 0
        """The number of screenshots decoded so far: calls that the cache did not answer."""

    def __call__(self, key: str, png: bytes) -> ImagePatches:
        """Return the patches of a screenshot.

        Args:
            key: The SHA-256 of the PNG.
            png: The screenshot; not looked at if the key is known.
        """
        packed = self.packed(key, png)
        films = normalized_films(packed.pixels, self.mean, self.std, self._processor.temporal_patch_size)
        return ImagePatches(films, packed.grid)

    def packed(self, key: str, png: bytes) -> PackedPatches:
        """Return the patches of a screenshot as bytes, from the cache where possible."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        packed = self._decode(png)
        with self._lock:
            self.decoded += 1
            if key not in self._cache:
                self._cache[key] = packed
                self._cached_bytes += packed.pixels.nbytes
            while self._cached_bytes > self._capacity:
                self._cached_bytes -= self._cache.popitem(last=False)[1].pixels.nbytes
        return packed

    def _decode(self, png: bytes) -> PackedPatches:
        with Image.open(BytesIO(png)) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
        patch, merge = self._processor.patch_size, self._processor.merge_size
        resized = self._processor.resize(
            pixels.unsqueeze(0), self._processor.size, self._processor.resample, factor=patch * merge
        )[0]
        channels, height, width = resized.shape
        blocks = resized.reshape(
            channels, height // patch // merge, merge, patch, width // patch // merge, merge, patch
        )
        # Rows of blocks, blocks of a row, then the patches of a block: those that the merger joins lie together.
        patches = blocks.permute(1, 4, 2, 5, 0, 3, 6).reshape(-1, channels, patch, patch)
        return PackedPatches(patches, (1, height // patch, width // patch))
