"""A vision tower: its input, its first layer and its attention; light, because processes that decode import it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from arpo.agent.actions import smart_resize

Grid = tuple[int, int, int]
"""Frames, rows and columns of patches of a picture."""
Rotate = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From queries, keys, cosines and sines to queries and keys."""


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


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return the tensor on a device, without waiting for what the device computes meanwhile.

    A copy from memory that the system may move would wait: to a GPU, a tensor goes through pinned memory.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Stretches of patches, each of which attends to itself alone, those of one length side by side."""

    runs: tuple[tuple[int, int], ...]
    """Number and length of the stretches of one length, run by run."""
    order: Int64[Tensor, " patches"] | None = None
    """The patches in the order of the stretches, and `back` its inverse; None where they lie so already."""
    back: Int64[Tensor, " patches"] | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], order: Int64[Tensor, " patches"]) -> "Segments":
        """Return stretches of these lengths, and leave out an order that changes nothing."""
        runs = tuple((len(list(equal)), length) for length, equal in groupby(lengths))
        unchanged = torch.equal(order, torch.arange(len(order)))
        return cls(runs) if unchanged else cls(runs, order, order.argsort())

    def to(self, device: torch.device) -> "Segments":
        """Return the segments for patches on a device."""
        if self.order is None or self.back is None:
            return self
        return Segments(self.runs, to_device(self.order, device), to_device(self.back, device))


class PatchEmbedding(nn.Module):
    """The vision tower's first layer, from bytes: normalizes patches in float32 on their device, then embeds them.

    Bytes are an eighth of the float32 films that the checkpoint's image processor makes of them. As the convolution
    `proj`, whose kernel is as large as a patch, the layer would take several times as long as the matrix product that
    it is.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, proj: nn.Conv3d, mean: Float[Tensor, "channels 1"], std: Float[Tensor, "channels 1"]) -> None:
        super().__init__()
        self.proj = proj
        self.register_buffer("mean", mean.clone(), persistent=False)
        self.register_buffer("std", std.clone(), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "patches channels height width"]) -> Float[Tensor, "patches hidden"]:
        """Return the embedding of each patch, in the number format of the weights."""
        films = normalized_films(pixels, self.mean, self.std, self.proj.kernel_size[0])
        return nn.functional.linear(films.to(self.proj.weight.dtype), self.proj.weight.flatten(1), self.proj.bias)


class SegmentAttention(nn.Module):
    """Attention within segments: one call of the kernel for all segments of a length.

    transformers calls it once a segment, which are 180 windows of a 1080p screenshot in each of 28 layers, and asks
    the device for their lengths in every layer. The result of a segment is the same. Weights keep their names.
    """

    def __init__(self, attention: Any, rotate: Rotate) -> None:
        super().__init__()
        self.qkv: nn.Linear = attention.qkv
        self.proj: nn.Linear = attention.proj
        self._heads: int = attention.num_heads
        self._scaling: float = attention.scaling
        self._rotate = rotate

    def forward(
        self,
        hidden_states: Float[Tensor, "patches hidden"],
        cu_seqlens: Segments,
        position_embeddings: tuple[Float[Tensor, "patches dim"], Float[Tensor, "patches dim"]],
        **unused: Any,
    ) -> Float[Tensor, "patches hidden"]:
        """Return the attention of each patch to those of its segment.

        The names are those of transformers' blocks, which pass what is `unused` to other kinds of attention.
        """
        patches = len(hidden_states)
        query, key, value = self.qkv(hidden_states).view(patches, 3, self._heads, -1).unbind(1)
        query, key = self._rotate(query, key, *position_embeddings)
        attended = _within(query, key, value, cu_seqlens, self._scaling)
        projected: Tensor = self.proj(attended.flatten(1))
        return projected


class VisionTower:
    """The face of a checkpoint's vision tower: from bytes of pictures to visual tokens.

    The tower's first layer and, under sdpa, its attention are replaced in place; all weights keep their names. What
    attends to what follows from the sizes of the pictures alone: it is computed on the host, so that a forward never
    asks its device for a number. A token is one row: what the merger makes of it, and beside that what DeepStack adds
    to each of the language model's first layers (arXiv 2511.21631).

    Args:
        visual: transformers' own tower; stays the policy's module.
        mean: See `normalized_films`, as for `std`.
        std: By which the checkpoint normalizes.
        rotate: Turns queries and keys by the places of their patches.
        layout: Gives the inputs of the tower's forward beside the patches, for pictures of some grids; `by_segments`
            says whether its attention takes `Segments`.
    """

    def __init__(
        self,
        visual: Any,
        mean: Float[Tensor, "channels 1"],
        std: Float[Tensor, "channels 1"],
        rotate: Rotate,
        layout: Callable[..., Mapping[str, Any]],
    ) -> None:
        visual.patch_embed = PatchEmbedding(visual.patch_embed.proj, mean, std)
        self._visual = visual
        self._layout = layout
        self._by_segments: bool = visual.config._attn_implementation == "sdpa"
        for block in visual.blocks if self._by_segments else ():
            block.attn = SegmentAttention(block.attn, rotate)

    def __call__(
        self, pixels: UInt8[Tensor, "patches channels height width"], grids: tuple[Grid, ...]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return the visual tokens of some pictures, one after the other, from the patches of all and their grids."""
        given: dict[str, Any] = {}
        for name, value in self._layout(grids, by_segments=self._by_segments).items():
            given[name] = to_device(value, pixels.device) if isinstance(value, Tensor) else value
            if isinstance(value, Segments):
                given[name] = value.to(pixels.device)
        seen = self._visual(pixels, grid_thw=None, **given)
        deep = seen.get("deepstack_features")
        return torch.cat([seen.pooler_output, *deep], dim=1) if deep else seen.pooler_output  # no copy of all pictures


def rearranged(values: Tensor, lengths: Tensor, order: Tensor) -> Tensor:
    """Return values whose stretches of some lengths stand in another order."""
    stretches = torch.split(values, lengths.tolist())
    return torch.cat([stretches[number] for number in order])


def _within(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scaling: float) -> Tensor:
    """Return the attention of [patches, heads, dim] within segments."""
    states = [query, key, value]
    if segments.order is not None:
        states = [state.index_select(0, segments.order) for state in states]
    attended = []
    start = 0
    for count, length in segments.runs:
        queries, keys, values = (
            state.narrow(0, start, count * length).view(count, length, *state.shape[1:]).transpose(1, 2)
            for state in states
        )
        result = nn.functional.scaled_dot_product_attention(queries, keys, values, scale=scaling)
        attended.append(result.transpose(1, 2).flatten(0, 1))
        start += count * length
    joined = torch.cat(attended)
    return joined if segments.back is None else joined.index_select(0, segments.back)
