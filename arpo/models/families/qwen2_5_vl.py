"""Qwen2.5-VL, and so UI-TARS-1.5: all that is true of this family of models and of no other."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids, get_vision_window_index

from arpo.agent.coordinates import CoordinateFrame
from arpo.errors import ConfigError, check_at_least, check_positive
from arpo.models.tiny import CONTEXT, train_words
from arpo.models.vision.attention import Segments, on_device, rearranged, replace_slow_layers
from arpo.models.vision.patches import Grid, ImagePatches

log = logging.getLogger(__name__)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen2.5-VL's special tokens, by its names and in its order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2.5-VL's turns without its default system message, which would cost tokens in every prompt."""

HEAD_DIM = 32
"""vLLM's CPU attention wants a multiple of 32."""
AXES = 3
"""Time, row and column."""
VISION_DEPTH = 2
VISION_SPREAD = 0.1
"""Standard deviation of the vision tower's first weights: 0.02, the real model's, suits a width of 1,280."""
VISION = {
    "depth": VISION_DEPTH,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "initializer_range": VISION_SPREAD,
}
IMAGE_MEAN = (1.0, 1.0, 1.0)
IMAGE_SPREAD = (0.15, 0.15, 0.15)
"""White is zero: most of a page is white, and a grey button on it would differ from it by a hundredth of its norm."""
FULL_ATTENTION = tuple(range(VISION_DEPTH))
"""Every layer: window attention on a handful of patches is twenty times slower on vLLM's CPU than full attention."""
VOCABULARY_MULTIPLE = 64
"""The embedding has more rows than the tokenizer has words, as in the real model: 152,064 against 151,665."""


class VisionTower:
    """The face of a checkpoint's vision tower: from bytes of pictures to visual tokens.

    The tower's first layer and, under sdpa, its attention are replaced in place; all weights keep their names. What
    attends to what follows from the sizes of the pictures alone: it is computed on the host, so that a forward never
    asks its device for a number.

    Args:
        visual: The `Qwen2_5_VisionTransformerPretrainedModel` of a policy; stays the policy's module.
        mean: See `normalized_films`, as for `std`.
        std: By which the checkpoint normalizes.
    """

    def __init__(self, visual: Any, mean: Float[Tensor, "channels 1"], std: Float[Tensor, "channels 1"]) -> None:
        config = visual.config
        self._visual = visual
        self._sizes = (config.spatial_merge_size, config.window_size, config.patch_size)
        self._windowed: bool = len(config.fullatt_block_indexes) < config.depth
        self._by_segments = replace_slow_layers(visual, mean, std, apply_rotary_pos_emb_vision)

    def __call__(
        self, pixels: UInt8[Tensor, "patches channels height width"], grids: tuple[Grid, ...]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return the visual tokens of some pictures, one picture after the other.

        Args:
            pixels: The patches of all pictures, on the device of the weights.
            grids: Frames, rows and columns of patches of each picture.
        """
        if self._by_segments:
            layout = segment_layout(grids, *self._sizes, windowed=self._windowed)
        else:
            layout = cumulative_layout(grids, *self._sizes)
        tokens: Tensor = self._visual(pixels, grid_thw=None, **on_device(layout, pixels.device)).pooler_output
        return tokens


def cumulative_layout(grids: tuple[Grid, ...], merge: int, window: int, patch: int) -> dict[str, Any]:
    """Return the layout of some pictures as transformers' own attention takes it, picture by picture.

    Args:
        grids: Sizes of the pictures in patches.
        merge: Patches that become one visual token, along a side.
        window: Pixels along the side of a window.
        patch: Pixels along the side of a patch.
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
        return VisionTower(model.model.visual, mean, std)

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
        """Return how many layers are not windowed."""
        return len(config.vision_config.fullatt_block_indexes)

    def attention_layers(self, config: Any) -> int:
        """Return the number of all of them."""
        return int(config.text_config.num_hidden_layers)

    def make_tiny(self, directory: str | Path, *, corpus: Sequence[str]) -> Path:
        """Write the model of `make_tiny`, by its defaults."""
        return make_tiny(directory, corpus=corpus)


FAMILY = Qwen25VL()


def make_tiny(  # noqa: PLR0913 - one argument a line of the configuration
    directory: str | Path,
    *,
    corpus: Sequence[str],
    hidden: int = 128,
    layers: int = 2,
    words: int = 640,
    seed: int = 0,
    min_pixels: int = 56 * 56,
    max_pixels: int = 112 * 140,
    full_attention: Sequence[int] = FULL_ATTENTION,
    rotary_base: float = 10_000.0,
    rotary_sections: Sequence[int] = (4, 6, 6),
    context: int = CONTEXT,
) -> Path:
    """Write a randomly initialised Qwen2.5-VL with its own tokenizer and processor, and return the directory.

    The defaults give 0.7 million parameters and 20 visual tokens a screenshot of 112 x 140. Every integer up to the
    longest coordinate of a 16:9 screenshot of `max_pixels` is one token, so a click is five or six.

    Args:
        directory: Created if missing; `from_pretrained` and vLLM load it.
        corpus: Texts the byte-level BPE is trained on: instructions, responses and prompt texts of the tasks.
        hidden: Width of the language model, a multiple of 64: heads are 32 wide and come in pairs.
        layers: Depth of the language model.
        words: Size of the vocabulary at most, the 14 special tokens and 256 bytes included.
        seed: Of the weights.
        min_pixels: Smaller screenshots are enlarged to this.
        max_pixels: Larger screenshots are reduced to this.
        full_attention: Layers of the vision tower, of two, that see whole screenshots; the others see windows of
            112 x 112 pixels, as most of the real model do.
        rotary_base: Of the rotations of a head; the larger, the longer a conversation whose places differ. With
            10,000, the columns of a tiny screenshot hardly do: what looks at short ones is better off with 100.
        rotary_sections: How many of the 16 rotations, the fastest first, are those of time, row and column.
        context: Tokens of a conversation that the model is made for; engines refuse longer ones.
    """
    if not set(full_attention) <= set(range(VISION_DEPTH)):
        raise ConfigError(f"full_attention must name layers 0 to {VISION_DEPTH - 1}, got {list(full_attention)}")
    tokenizer = train_tokenizer(corpus, words, isqrt(max_pixels * 16 // 9), context)
    text = language_settings(tokenizer, hidden, layers, context, rotary_base, rotary_sections)
    vision = VISION | {"out_hidden_size": hidden, "fullatt_block_indexes": list(full_attention)}
    config = Qwen2_5_VLConfig(
        text_config=text | {"max_window_layers": layers}, vision_config=vision, **shared_settings(tokenizer)
    )
    processor = Qwen2_5_VLProcessor(
        image_processor=image_processor(min_pixels, max_pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )
    return write_tiny(directory, Qwen2_5_VLForConditionalGeneration, config, processor, seed)


def train_tokenizer(corpus: Sequence[str], words: int, largest_number: int, context: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which every number up to the largest is one token."""
    smallest_vocabulary = len(SPECIAL_TOKENS) + 256 + largest_number
    if words < smallest_vocabulary:
        raise ConfigError(
            f"words must be at least {smallest_vocabulary} (special tokens, bytes and numbers to {largest_number}), "
            f"got {words}"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=train_words(corpus, words, largest_number, SPECIAL_TOKENS),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL_TOKENS if t not in ("<|im_end|>", "<|endoftext|>")],
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def language_settings(
    tokenizer: PreTrainedTokenizerFast,
    hidden: int,
    layers: int,
    context: int,
    rotary_base: float,
    rotary_sections: Sequence[int],
) -> dict[str, Any]:
    """Return the configuration of a tiny language model."""
    if hidden < 2 * HEAD_DIM or hidden % (2 * HEAD_DIM):
        raise ConfigError(f"hidden must be a positive multiple of {2 * HEAD_DIM}, got {hidden}")
    check_at_least(1, layers=layers, context=context)
    check_positive(rotary_base=rotary_base)
    sections = list(rotary_sections)
    if len(sections) != AXES or sum(sections) != HEAD_DIM // 2 or min(sections) < 1:
        raise ConfigError(
            f"rotary_sections must be {AXES} positive numbers with the sum {HEAD_DIM // 2}, got {sections}"
        )
    return {
        "vocab_size": -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD_DIM,
        "num_key_value_heads": hidden // HEAD_DIM // 2,
        "max_position_embeddings": context,
        "rope_parameters": {"rope_type": "default", "rope_theta": rotary_base, "mrope_section": sections},
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def shared_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return what the configuration of a tiny model says of both towers."""
    named = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    ids = {key: tokenizer.convert_tokens_to_ids(name) for key, name in named.items()}
    return ids | {"tie_word_embeddings": True}


def image_processor(min_pixels: int, max_pixels: int, **settings: int) -> Qwen2VLImageProcessor:
    """Return the image processor of a tiny model."""
    if not 0 < min_pixels <= max_pixels:
        raise ConfigError(f"need 0 < min_pixels <= max_pixels, got {min_pixels} and {max_pixels}")
    return Qwen2VLImageProcessor(
        min_pixels=min_pixels, max_pixels=max_pixels, image_mean=IMAGE_MEAN, image_std=IMAGE_SPREAD, **settings
    )


def write_tiny(directory: str | Path, model_class: Any, config: Any, processor: Any, seed: int) -> Path:
    """Write a randomly initialised model with its processor, and return the directory."""
    tokenizer = processor.tokenizer
    config.architectures = [model_class.__name__]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    log.info("made a tiny %s: %d parameters, %d words", config.model_type, model.num_parameters(), len(tokenizer))
    return Path(directory)
