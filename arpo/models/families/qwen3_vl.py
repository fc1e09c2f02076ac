"""Qwen3-VL, its dense models, and so GUI-Owl 1.5 and EvoCUA: all in which they differ from Qwen2.5-VL."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)
from typing_extensions import override

from arpo.agent.coordinates import CoordinateFrame
from arpo.errors import check_at_least
from arpo.models.families.qwen2_5_vl import (
    CHAT_TEMPLATE,
    HEAD_DIM,
    VISION,
    Qwen25VL,
    image_processor,
    language_settings,
    shared_settings,
    train_tokenizer,
    write_tiny,
)
from arpo.models.tiny import CONTEXT
from arpo.models.vision.attention import Segments, on_device, rearranged, replace_slow_layers
from arpo.models.vision.patches import Grid

SCALE = 1000
"""Points are thousandths of the screen, whatever the size at which the model sees it."""
PATCH = 16
DEEPSTACK = (0, 1)
"""Blocks of the tiny vision tower whose features join the first layers of the tiny language model."""
PLACES = 64
"""Learned places of the tiny vision tower: eight rows of eight, as the real one has 48 of 48."""


class VisionTower:
    """The face of a checkpoint's vision tower: from bytes of pictures to visual tokens.

    A token is one row: what the merger makes of it, and beside that what DeepStack adds to each of the language
    model's first layers (arXiv 2511.21631). See also Qwen2.5-VL's tower.

    Args:
        visual: The `Qwen3VLVisionModel` of a policy; stays the policy's module.
        mean: See `normalized_films`, as for `std`.
        std: By which the checkpoint normalizes.
    """

    def __init__(self, visual: Any, mean: Float[Tensor, "channels 1"], std: Float[Tensor, "channels 1"]) -> None:
        self._visual = visual
        self._sizes: tuple[int, int] = (visual.num_grid_per_side, visual.config.spatial_merge_size)
        self._by_segments = replace_slow_layers(visual, mean, std, apply_rotary_pos_emb_vision)

    def __call__(
        self, pixels: UInt8[Tensor, "patches channels height width"], grids: tuple[Grid, ...]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return the visual tokens of some pictures, one picture after the other; arguments as for Qwen2.5-VL."""
        given = on_device(layout(grids, *self._sizes, by_segments=self._by_segments), pixels.device)
        seen = self._visual(pixels, grid_thw=None, **given)
        return torch.cat([seen.pooler_output, *seen.deepstack_features], dim=1)


@lru_cache(maxsize=16)
def layout(grids: tuple[Grid, ...], side: int, merge: int, *, by_segments: bool) -> dict[str, Any]:
    """Return where the patches of some pictures stand, and that those of each attend to each other.

    Args:
        grids: Sizes of the pictures in patches.
        side: Learned places along a side, between which those of a picture are interpolated.
        merge: Patches that become one visual token, along a side.
        by_segments: Whether attention takes `Segments`, and not the places at which pictures begin.
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


class Qwen3VL(Qwen25VL):
    """The family of Qwen3-VL, as `ModelFamily` has it, where the shapes of tensors stand, too."""

    model_type = "qwen3_vl"
    model_class: Any = Qwen3VLForConditionalGeneration
    processor_class = "Qwen3VLProcessor"
    resize_factor = 2 * PATCH
    pixels = (256 * 256, 4096 * 4096)
    embedding = "model.language_model.embed_tokens.weight"

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
    def tower(self, model: Any, mean: Tensor, std: Tensor) -> Any:
        """Return the vision tower, and have the language model take DeepStack's features by places, not by a mask."""
        model.model.language_model._deepstack_process = _added
        return VisionTower(model.model.visual, mean, std)

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

    @override
    def make_tiny(self, directory: str | Path, *, corpus: Sequence[str]) -> Path:
        """Write the model of `make_tiny`, by its defaults."""
        return make_tiny(directory, corpus=corpus)


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


def make_tiny(  # noqa: PLR0913 - one argument a line of the configuration
    directory: str | Path,
    *,
    corpus: Sequence[str],
    hidden: int = 128,
    layers: int = 2,
    words: int = 640,
    seed: int = 0,
    min_pixels: int = 64 * 64,
    max_pixels: int = 128 * 160,
    rotary_base: float = 10_000.0,
    rotary_sections: Sequence[int] = (6, 5, 5),
    context: int = CONTEXT,
) -> Path:
    """Write a randomly initialised Qwen3-VL with its own tokenizer and processor, and return the directory.

    The defaults give 0.9 million parameters and 20 visual tokens a screenshot of 128 x 160. Every integer below 1000
    is one token, so a click is five or six.

    Args:
        directory: Created if missing; `from_pretrained` and vLLM load it.
        corpus: See Qwen2.5-VL's `make_tiny`, as for all that are not below.
        layers: Depth of the language model; two at least, to the first two of which DeepStack adds.
        words: Size of the vocabulary at most, without the numbers.
        rotary_sections: How many of the 16 rotations are those of time, row and column; they take turns, so that rows
            and columns get five at most, and time the rest.
    """
    check_at_least(len(DEEPSTACK), layers=layers)
    tokenizer = train_tokenizer(corpus, words + SCALE, SCALE - 1, context)
    text = language_settings(tokenizer, hidden, layers, context, rotary_base, rotary_sections)
    text["rope_parameters"]["mrope_interleaved"] = True
    text["head_dim"] = HEAD_DIM
    vision = VISION | {
        "depth": len(DEEPSTACK) + 1,
        "patch_size": PATCH,
        "out_hidden_size": hidden,
        "num_position_embeddings": PLACES,
        "deepstack_visual_indexes": list(DEEPSTACK),
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision, **shared_settings(tokenizer))
    return write_tiny(
        directory, Qwen3VLForConditionalGeneration, config, tiny_processor(tokenizer, min_pixels, max_pixels), seed
    )


def tiny_processor(tokenizer: PreTrainedTokenizerFast, min_pixels: int, max_pixels: int) -> Qwen3VLProcessor:
    """Return the processor of a tiny model, which Qwen3.5 shares."""
    return Qwen3VLProcessor(
        image_processor=image_processor(min_pixels, max_pixels, patch_size=PATCH),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
