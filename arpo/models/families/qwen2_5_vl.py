"""Qwen2.5-VL, and so UI-TARS-1.5: all that is true of this family of models and of no other."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids, get_vision_window_index

from arpo.agent.actions import CoordinateFrame
from arpo.models.tiny import TinyModel
from arpo.models.vision.tower import Grid, ImagePatches, Segments, VisionTower, rearranged


def cumulative_layout(grids: tuple[Grid, ...], merge: int, window: int, patch: int) -> dict[str, Any]:
    """Return the layout of some pictures as transformers' own attention takes it, picture by picture.

    Along their sides, `merge` patches become one visual token, and window and patch are in pixels.
    """
    sizes = torch.tensor(grids)
    index, windows = get_vision_window_index(sizes, merge, window, patch)
    pictures = get_vision_cu_seqlens(sizes)
    return {
        "position_ids": get_vision_position_ids(sizes, merge),
        "window_index": index,
        "cu_seqlens": pictures,
        "cu_window_seqlens": windows,
        "max_seqlen": int(pictures.diff().max()),
        "max_window_seqlen": int(windows.diff().max()),
    }


@lru_cache(maxsize=16)
def segment_layout(grids: tuple[Grid, ...], merge: int, window: int, patch: int, *, windowed: bool) -> dict[str, Any]:
    """Return the layout of some pictures for attention by `Segments`, from the numbers of `cumulative_layout`.

    The windows of all pictures are sorted by their size: a 1080p screenshot has 180 windows of four sizes, and so have
    fifteen of them. The few layers that see whole pictures bring the patches of each together. Where no layer sees
    windows, these stay as transformers orders them, and every picture is in one piece.
    """
    plain = cumulative_layout(grids, merge, window, patch)
    index, windows, pictures = plain["window_index"], plain["cu_window_seqlens"].diff(), plain["cu_seqlens"].diff()
    by_size = windows.argsort(descending=True, stable=True) if windowed else torch.arange(len(windows))
    largest_first = pictures.argsort(descending=True, stable=True)
    # The tokens in the tower's order, and where in it those lie whose windows come picture by picture.
    order = rearranged(torch.arange(len(index)), windows // merge**2, by_size)
    places = rearranged(order.argsort(), pictures // merge**2, largest_first)
    patches = (places.unsqueeze(1) * merge**2 + torch.arange(merge**2)).flatten()
    return {
        "position_ids": plain["position_ids"],
        "window_index": index[order],
        "cu_seqlens": Segments.of(pictures[largest_first].tolist(), patches),
        "cu_window_seqlens": Segments.of(windows[by_size].tolist(), torch.arange(len(patches))),
    }


class Qwen25VL:
    """The family of Qwen2.5-VL, as `ModelFamily` has it, where the shapes of tensors stand, too."""

    model_type = "qwen2_5_vl"
    model_class = Qwen2_5_VLForConditionalGeneration
    processor_class = "Qwen2_5_VLProcessor"
    image_processor_type = "Qwen2VLImageProcessor"
    resize_factor = 28  # patches of 14, 2 along the side of a token
    pixels = (56 * 56, 14 * 14 * 4 * 16384)
    never_sampled: tuple[str, ...] = (
        "<|endoftext|>",
        "<|im_start|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    )
    around_image = 1  # <|vision_start|> and <|vision_end|>
    embedding = "model.embed_tokens.weight"
    lora_targets = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
    recurrent = False
    tiny = TinyModel(
        model=Qwen2_5_VLForConditionalGeneration,
        config=Qwen2_5_VLConfig,
        processor=Qwen2_5_VLProcessor,
        video_processor=Qwen2VLVideoProcessor,
        pixels=(56 * 56, 112 * 140),
        rotary_sections=(4, 6, 6),
        text=lambda _, layers: {"max_window_layers": layers},
        # Every layer sees whole pictures: windows of a handful of patches are twenty times slower on vLLM's CPU.
        vision={"fullatt_block_indexes": [0, 1]},
    )

    def checkpoint_name(self, name: str) -> str:
        """Undo how transformers 5 renames a checkpoint as it loads; it keeps the new names."""
        for ours, published in (("model.visual.", "visual."), ("model.language_model.", "model.")):
            if name.startswith(ours):
                return published + name.removeprefix(ours)
        return name

    def frame(self, screen: tuple[int, int], seen: tuple[int, int]) -> CoordinateFrame:
        """Return the map of a model that names pixels of the resized picture."""
        return CoordinateFrame(*screen, *seen)

    def position_ids(self, image_mask: Tensor, grids: Sequence[Grid], merge: int) -> Tensor:
        """Return time, row and column of each token, as `Qwen2_5_VLModel.get_rope_index` does: M-RoPE.

        Text advances all three by 1 a token. A screenshot starts at the next position p, spans p + row and p + column
        at the constant time p, and text goes on at p + its longer side.
        """
        if not grids:
            return torch.arange(len(image_mask)).repeat(3, 1)
        sides = [(frames, rows // merge, columns // merge) for frames, rows, columns in grids]
        sizes = torch.tensor([prod(each) for each in sides])
        placeholders = image_mask.nonzero().squeeze(1)
        ends = sizes.cumsum(0)
        steps = torch.ones(len(image_mask), dtype=torch.int64)
        # Within a picture time stands still; its last token makes up for the longer side.
        steps[placeholders] = 0
        steps[placeholders[ends - 1]] = torch.tensor([max(rows, columns) for _, rows, columns in sides])
        position_ids = (steps.cumsum(0) - steps).repeat(3, 1)
        starts = position_ids[0, placeholders[ends - sizes]].repeat_interleave(sizes)
        inside = [torch.cartesian_prod(*(torch.arange(side) for side in each)) for each in sides]
        position_ids[:, placeholders] = starts + torch.cat(inside).T
        return position_ids

    def blocks(self, model: Any) -> list[nn.Module]:
        """Return the blocks of the vision tower and those of the language model."""
        return [*model.model.visual.blocks, *model.model.language_model.layers]

    def tower(self, model: Any, mean: Tensor, std: Tensor) -> VisionTower:
        """Return the vision tower with its windows."""
        visual = model.model.visual
        config = visual.config
        sizes = (config.spatial_merge_size, config.window_size, config.patch_size)
        windowed = len(config.fullatt_block_indexes) < config.depth

        def layout(grids: tuple[Grid, ...], *, by_segments: bool) -> dict[str, Any]:
            if by_segments:
                return segment_layout(grids, *sizes, windowed=windowed)
            return cumulative_layout(grids, *sizes)

        return VisionTower(visual, mean, std, apply_rotary_pos_emb_vision, layout)

    def hidden_states(
        self, model: Any, embeddings: Tensor, visual: Tensor, places: Tensor, position_ids: Tensor
    ) -> Tensor:
        """Return the language model's output, with visual tokens in the place of the placeholders' embeddings."""
        rows = embeddings.flatten(0, 1).index_copy(0, places, visual)
        hidden: Tensor = model.model.language_model(
            inputs_embeds=rows.view_as(embeddings), position_ids=position_ids, use_cache=False
        ).last_hidden_state
        return hidden

    def generation_inputs(
        self, image_mask: Tensor, pictures: Sequence[ImagePatches], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Return which tokens are pictures', the pictures as films, and their grids."""
        inputs = {"mm_token_type_ids": image_mask.long()}
        if pictures:
            inputs["pixel_values"] = torch.cat([picture.pixel_values for picture in pictures]).to(dtype)
            inputs["image_grid_thw"] = torch.tensor([picture.grid for picture in pictures])
        return inputs

    def visual_width(self, config: Any) -> int:
        """Return the width of the language model, which the tower's merger ends with."""
        return int(config.vision_config.out_hidden_size)

    def picture_layers(self, config: Any) -> int:
        """Return the number of layers that are not windowed."""
        return len(config.vision_config.fullatt_block_indexes)

    def attention_layers(self, config: Any) -> int:
        """Return the number of all of them."""
        return int(config.text_config.num_hidden_layers)


FAMILY = Qwen25VL()

make_tiny = FAMILY.tiny.make
"""The writer of a tiny model with random weights."""
