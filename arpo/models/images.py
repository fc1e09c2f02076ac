"""Screenshots as patches for the vision tower, decoded and resized once each."""

from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from pathlib import Path
from threading import Lock

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoImageProcessor

from arpo.bounds import NotNegative, checked
from arpo.models.family import family_of
from arpo.models.processor import image_numbers, load_processor
from arpo.models.vision.tower import Grid, ImagePatches, PackedPatches, decode, normalized_films, picture_size
from arpo.models.vision.workers import PatchWorkers, Prepared

WORTH_WORKERS = 16 * 1920 * 1080
"""Pixels of screenshots from which on worker processes are worth their start."""


@checked
class ImageProcessor:
    """A maker of patches from screenshots, equal bit for bit to the checkpoint's own image processor.

    Resized screenshots are kept by the SHA-256 of their PNG, least recently used dropped first, so that every step of
    an episode and every forward of an update share one decoding: those of an update while it lasts, between updates
    `cache_mb` megabytes, of which 1080p takes 6.3. Safe to call from several threads.
    """

    def __init__(self, path: str | Path, *, cache_mb: NotNegative = 1024) -> None:
        numbers = image_numbers(load_processor(path, AutoImageProcessor), path)
        self.family = family_of(path)
        self.merge_size: int = numbers.sizes.merge_size
        self.frames: int = numbers.frames
        # Rescaling and normalizing in one step, as the checkpoint's processor does it.
        scale = numbers.rescale_factor
        self.mean: Float[Tensor, "channels 1"] = torch.tensor(numbers.mean).mul(1 / scale).view(3, 1)
        self.std: Float[Tensor, "channels 1"] = torch.tensor(numbers.std).mul(1 / scale).view(3, 1)
        self._settings = numbers.sizes
        merge, patch = self.merge_size, numbers.sizes.patch_size
        self.blank = PackedPatches(torch.zeros(merge**2, 3, patch, patch, dtype=torch.uint8), (1, merge, merge))
        """A picture of one visual token, for a tower that must be passed where there is none."""
        self._usual_bytes = self._capacity = cache_mb * 2**20
        self._cache: OrderedDict[str, PackedPatches] = OrderedDict()
        self._cached_bytes = 0
        self._lock = Lock()
        self._coming: dict[str, Prepared] = {}
        self._workers: PatchWorkers | None = None
        self.decoded = 0
        """The number of screenshots decoded so far: calls that the cache did not answer."""

    def __call__(self, key: str, png: bytes) -> ImagePatches:
        """Return the patches of a screenshot, whose PNG is not looked at if the key is known."""
        packed = self.packed(key, png)
        return ImagePatches(normalized_films(packed.pixels, self.mean, self.std, self.frames), packed.grid)

    def packed(self, key: str, png: bytes) -> PackedPatches:
        """Return the patches of a screenshot as bytes, from the cache where possible; waits where it is on its way."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            coming = self._coming.get(key)
        packed = coming.result() if coming is not None else None
        # What a worker could not decode is tried here, so that the error is raised where the screenshot is wanted.
        packed = packed or decode(png, self._settings)
        with self._lock:
            self.decoded += 1
            self._coming.pop(key, None)
            if key not in self._cache:
                self._cache[key] = packed
                self._cached_bytes += packed.pixels.nbytes
            self._shrink()
        return packed

    def prepare(self, screenshots: Mapping[str, bytes], processes: int) -> None:
        """Begin to decode the screenshots of an update, in the order given, and keep all of them until `forget`.

        Where they are many or large, worker processes decode them; starting these takes as long as a dozen
        screenshots of 1080p.
        """
        with self._lock:
            unknown = {key: png for key, png in screenshots.items() if key not in self._cache}
            for key in screenshots.keys() & self._cache.keys():
                self._cache.move_to_end(key)  # what is not wanted leaves first
            patches = sum(prod(self._settings.grid(*picture_size(png))) for png in screenshots.values())
            self._capacity = max(self._usual_bytes, patches * 3 * self._settings.patch_size**2)
        if sum(width * height for width, height in map(picture_size, unknown.values())) < WORTH_WORKERS:
            return
        if self._workers is None:
            self._workers = PatchWorkers(self._settings, processes)
        for key, png in unknown.items():
            self._coming[key] = self._workers.submit(png)

    def forget(self) -> None:
        """Keep no more than between updates."""
        with self._lock:
            for coming in self._coming.values():
                coming.cancel()
            self._coming.clear()
            self._capacity = self._usual_bytes
            self._shrink()

    def close(self) -> None:
        """End the worker processes."""
        self.forget()
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def grid(self, key: str, png: bytes) -> Grid:
        """Return frames, rows and columns of patches of a screenshot, which need not be decoded for it."""
        with self._lock:
            if key in self._cache:
                return self._cache[key].grid
        return self._settings.grid(*picture_size(png))

    def _shrink(self) -> None:
        while self._cached_bytes > self._capacity:
            self._cached_bytes -= self._cache.popitem(last=False)[1].pixels.nbytes
