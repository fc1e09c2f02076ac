"""Qwen3-VL, its dense models, and so GUI-Owl 1.5 and EvoCUA: all in which they differ from Qwen2.5-VL."""

from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor, Qwen3VLVideoProcessor
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)
from typing_extensions import override

from arpo.agent.actions import CoordinateFrame
from arpo.models.families.qwen2_5_vl import Qwen25VL
from arpo.models.tiny import HEAD_DIM, TinyModel
from arpo.models.vision.tower import Grid, Segments, VisionTower, rearranged

SCALE = 1000
"""Points are thousandths of the screen, whatever the size at which the model sees it."""
PATCH = 16


@lru_cache(maxsize=16)
def layout(grids: tuple[Grid, ...], *, side: int, merge: int, by_segments: bool) -> dict[str, Any]:
    """Return the places of the patches of some pictures, and that those of each attend to each other.

    There are `side` learned places along a side, between which those of a picture are interpolated. Attention takes
    `Segments`, or the places at which pictures begin.
    """
    sizes = torch.tensor(grids)
    places, weights = get_vision_interpolation_indices_and_weights(
        sizes, side, align_corners=True, spatial_merge_size=merge
    )
    given = {
        "interp_indices": places,
        "interp_weights": weights,
        "position_ids": get_vision_position_ids(sizes, merge),
    }
    pictures = get_vision_cu_seqlens(sizes)
    lengths = pictures.diff()
    if not by_segments:
        return given | {"cu_seqlens": pictures, "max_seqlen": int(lengths.max())}
    largest_first = lengths.argsort(descending=True, stable=True)
    order = rearranged(torch.arange(int(lengths.sum())), lengths, largest_first)
    return given | {"cu_seqlens": Segments.of(lengths[largest_first].tolist(), order)}


def tower_of(visual: Any, mean: Tensor, std: Tensor) -> VisionTower:
    """Return the face of a vision tower with learned places and without windows."""
    places = partial(layout, side=visual.num_grid_per_side, merge=visual.config.spatial_merge_size)
    return VisionTower(visual, mean, std, apply_rotary_pos_emb_vision, places)


class Qwen3VL(Qwen25VL):
    """The family of Qwen3-VL, as `ModelFamily` has it, where the shapes of tensors stand, too."""

    model_type = "qwen3_vl"
    model_class: Any = Qwen3VLForConditionalGeneration
    processor_class = "Qwen3VLProcessor"
    resize_factor = 2 * PATCH
    pixels = (256 * 256, 4096 * 4096)
    embedding = "model.language_model.embed_tokens.weight"
    tiny = TinyModel(
        model=Qwen3VLForConditionalGeneration,
        config=Qwen3VLConfig,
        processor=Qwen3VLProcessor,
        video_processor=Qwen3VLVideoProcessor,
        image_processor={"patch_size": PATCH},
        pixels=(64 * 64, 128 * 160),
        numbers=SCALE,
        rotary_sections=(6, 5, 5),
        rotations={"mrope_interleaved": True},
        least_layers=2,  # to which DeepStack adds the features of two blocks of the vision tower
        text=lambda *_: {"head_dim": HEAD_DIM},
        # Eight rows of eight learned places, as the real one has 48 of 48.
        vision={"depth": 3, "patch_size": PATCH, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
    )

    @override
    def checkpoint_name(self, name: str) -> str:
        """Return the name itself: checkpoints have those of transformers 5."""
        return name

    @override
    def frame(self, screen: tuple[int, int], seen: tuple[int, int]) -> CoordinateFrame:
        """Return the map of a model that names thousandths of the screen's sides."""
        return CoordinateFrame(*screen, SCALE, SCALE)

    @override
    def blocks(self, model: Any) -> list[nn.Module]:
        """Return the blocks of both towers and DeepStack's mergers, each as large as a block of the vision tower."""
        return [*super().blocks(model), *model.model.visual.deepstack_merger_list]

    @override
    def tower(self, model: Any, mean: Tensor, std: Tensor) -> VisionTower:
        """Return the vision tower, and have the language model take DeepStack's features by places, not by a mask."""
        model.model.language_model._deepstack_process = _added
        return tower_of(model.model.visual, mean, std)

    @override
    def hidden_states(
        self, model: Any, embeddings: Tensor, visual: Tensor, places: Tensor, position_ids: Tensor
    ) -> Tensor:
        """Return the language model's output, with visual tokens in their places, in its first layers too."""
        tokens, *deeper = torch.split(visual, embeddings.shape[-1], dim=1)
        rows = embeddings.flatten(0, 1).index_copy(0, places, tokens)
        hidden: Tensor = model.model.language_model(
            inputs_embeds=rows.view_as(embeddings),
            position_ids=position_ids,
            use_cache=False,
            visual_pos_masks=places,
            deepstack_visual_embeds=deeper,
        ).last_hidden_state
        return hidden

    @override
    def visual_width(self, config: Any) -> int:
        """Return the width of the language model, once for its input and once for each of DeepStack's layers."""
        vision = config.vision_config
        return int(vision.out_hidden_size) * (1 + len(vision.deepstack_visual_indexes))

    @override
    def picture_layers(self, config: Any) -> int:
        """Return the number of layers: none is windowed."""
        return int(config.vision_config.depth)


def _added(
    hidden: Float[Tensor, "batch tokens width"],
    places: Tensor,
    visual: Float[Tensor, "placeholders width"],
) -> Float[Tensor, "batch tokens width"]:
    """Return hidden states to which visual features are added at some places of the batch as one row.

    transformers has a mask in the place of places, and asks the device how many there are.
    """
    return hidden.flatten(0, 1).index_add(0, places, visual.to(hidden.dtype)).view_as(hidden)


FAMILY = Qwen3VL()

make_tiny = FAMILY.tiny.make
"""The writer of a tiny model with random weights."""
