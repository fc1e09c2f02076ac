"""The vision tower of Qwen2.5-VL, with the parts replaced that transformers computes slowly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

from arpo.models.images import ImageProcessor, normalized_films
from arpo.models.transfer import to_device
from arpo.models.vision.windows import Grid, Segments, cumulative_layout, vision_layout


class VisionTower:
    """The face of a checkpoint's vision tower: from bytes of pictures to visual tokens.

    The tower's first layer and, under sdpa, its attention are replaced in place; all weights keep their names.

    Args:
        visual: The `Qwen2_5_VisionTransformerPretrainedModel` of a policy; stays the policy's module.
        images: Knows how the checkpoint normalizes.
    """

    def __init__(self, visual: Any, images: ImageProcessor) -> None:
        config = visual.config
        self._visual = visual
        self._merge: int = config.spatial_merge_size
        self._side: int = config.window_size // config.spatial_merge_size // config.patch_size
        self._windowed: bool = len(config.fullatt_block_indexes) < config.depth
        self._by_segments: bool = config._attn_implementation == "sdpa"
        visual.patch_embed = PatchEmbedding(visual.patch_embed.proj, images)
        if self._by_segments:
            for block in visual.blocks:
                block.attn = SegmentAttention(block.attn)

    def __call__(
        self, pixels: UInt8[Tensor, "patches channels height width"], grids: tuple[Grid, ...]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return the visual tokens of some pictures, one picture after the other.

        Args:
            pixels: The patches of all pictures, on the device of the weights.
            grids: Frames, rows and columns of patches of each picture.
        """
        tokens: Tensor = self._visual(pixels, grid_thw=None, **self._arguments(grids, pixels.device)).pooler_output
        return tokens

    def _arguments(self, grids: tuple[Grid, ...], device: torch.device) -> dict[str, Any]:
        """Return what the tower would else compute from the sizes, for which it would ask the device."""
        if not self._by_segments:
            given = cumulative_layout(grids, self._merge, self._side)
            return {name: value if isinstance(value, int) else _sent(value, device) for name, value in given.items()}
        layout = vision_layout(grids, self._merge, self._side, windowed=self._windowed)
        return {
            "position_ids": _sent(layout.position_ids, device),
            "window_index": _sent(layout.window_index, device),
            "cu_seqlens": SentSegments.of(layout.pictures, device),
            "cu_window_seqlens": SentSegments.of(layout.windows, device),
        }


class PatchEmbedding(nn.Module):
    """The vision tower's first layer, from bytes: normalizes patches in float32 on their device, then embeds them.

    Bytes are an eighth of the float32 films that the checkpoint's image processor makes of them. As a convolution
    whose kernel is as large as a patch, the layer would take several times as long as the matrix product that it is.

    Args:
        proj: The convolution; the weights keep their names.
        images: Knows how the checkpoint normalizes.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, proj: nn.Conv3d, images: ImageProcessor) -> None:
        super().__init__()
        self.proj = proj
        self.register_buffer("mean", images.mean.clone(), persistent=False)
        self.register_buffer("std", images.std.clone(), persistent=False)

    def forward(self, pixels: UInt8[Tensor, "patches channels height width"]) -> Float[Tensor, "patches hidden"]:
        """Return the embedding of each patch, in the number format of the weights."""
        films = normalized_films(pixels, self.mean, self.std, self.proj.kernel_size[0])
        return nn.functional.linear(films.to(self.proj.weight.dtype), self.proj.weight.flatten(1), self.proj.bias)


@dataclass(frozen=True, slots=True, eq=False)
class SentSegments:
    """`Segments` whose order is on the device of the patches."""

    runs: tuple[tuple[int, int], ...]
    order: Tensor | None
    back: Tensor | None
    """The inverse of the order."""

    @classmethod
    def of(cls, segments: Segments, device: torch.device) -> "SentSegments":
        """Return the segments for patches on a device."""
        if segments.order is None:
            return cls(segments.runs, None, None)
        return cls(segments.runs, _sent(segments.order, device), _sent(np.argsort(segments.order), device))


class SegmentAttention(nn.Module):
    """Attention within segments: one call of the kernel for all segments of a length.

    transformers calls it once a segment, which are 180 windows of a 1080p screenshot in each of 28 layers, and asks
    the device for their lengths in every layer. The result of a segment is the same.

    Args:
        attention: transformers' `Qwen2_5_VLVisionAttention`, for its weights; they keep their names.
    """

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.qkv: nn.Linear = attention.qkv
        self.proj: nn.Linear = attention.proj
        self._heads: int = attention.num_heads
        self._scaling: float = attention.scaling

    def forward(
        self,
        hidden_states: Float[Tensor, "patches hidden"],
        cu_seqlens: SentSegments,
        position_embeddings: tuple[Float[Tensor, "patches dim"], Float[Tensor, "patches dim"]],
        **unused: Any,
    ) -> Float[Tensor, "patches hidden"]:
        """Return what each patch takes from those of its segment.

        Args:
            hidden_states: Patches in the order of the `VisionLayout`.
            cu_seqlens: The segments, under the name that transformers' blocks have for them.
            position_embeddings: Cosines and sines of the places of the patches.
            unused: What transformers' blocks pass to other kinds of attention.
        """
        patches = len(hidden_states)
        query, key, value = self.qkv(hidden_states).view(patches, 3, self._heads, -1).unbind(1)
        query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        attended = _within(query, key, value, cu_seqlens, self._scaling)
        projected: Tensor = self.proj(attended.flatten(1))
        return projected


def _within(query: Tensor, key: Tensor, value: Tensor, segments: SentSegments, scaling: float) -> Tensor:
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


def _sent(indices: np.ndarray, device: torch.device) -> Tensor:
    return to_device(torch.tensor(indices), device)
