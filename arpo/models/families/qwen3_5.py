"""Qwen3.5, its dense models, and so UI-Venus 2: all in which they differ from Qwen3-VL."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from typing_extensions import override

from arpo.errors import check_at_least
from arpo.models.families import qwen3_vl
from arpo.models.families.qwen2_5_vl import (
    HEAD_DIM,
    VISION,
    Qwen25VL,
    language_settings,
    shared_settings,
    train_tokenizer,
    write_tiny,
)
from arpo.models.families.qwen3_vl import PATCH, PLACES, SCALE, Qwen3VL, layout, tiny_processor
from arpo.models.tiny import CONTEXT
from arpo.models.vision.attention import on_device
from arpo.models.vision.patches import Grid

DELTA_HEAD_DIM = 128
"""The width of heads of Gated DeltaNet, the real model's: vLLM's CPU kernel takes no head of 32."""
KINDS = ("linear_attention", "full_attention")
"""Layers of the tiny language model, in turns: Gated DeltaNet (arXiv 2412.06464) and attention. The published models
have three of the former to one of the latter."""


class VisionTower(qwen3_vl.VisionTower):
    """The face of a checkpoint's vision tower, which is Qwen3-VL's without DeepStack."""

    @override
    def __call__(
        self, pixels: UInt8[Tensor, "patches channels height width"], grids: tuple[Grid, ...]
    ) -> Float[Tensor, "tokens hidden"]:
        """Return the visual tokens of some pictures, one picture after the other."""
        given = on_device(layout(grids, *self._sizes, by_segments=self._by_segments), pixels.device)
        tokens: Tensor = self._visual(pixels, grid_thw=None, **given).pooler_output
        return tokens


class Qwen35(Qwen3VL):
    """The family of Qwen3.5, as `ModelFamily` has it, where the shapes of tensors stand, too.

    Most layers of its language model carry a state from token to token in the place of attention. Such a layer sees
    what stands to the left, like causal attention, so padding on the right cannot reach a token; padding on the left
    would, and is kept out by a mask. No two trajectories may share a row.
    """

    model_type = "qwen3_5"
    model_class = Qwen3_5ForConditionalGeneration
    lora_targets = (
        r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|linear_attn\.(in_proj_(qkv|z|b|a)|out_proj)"
        r"|mlp\.(gate|up|down)_proj)"
    )
    # Without DeepStack, as before it.
    blocks = Qwen25VL.blocks
    hidden_states = Qwen25VL.hidden_states
    visual_width = Qwen25VL.visual_width

    @override
    def tower(self, model: Any, mean: Tensor, std: Tensor) -> Any:
        """Return the vision tower."""
        return VisionTower(model.model.visual, mean, std)

    @override
    def attention_layers(self, config: Any) -> int:
        """Return the number of layers that are no Gated DeltaNet."""
        return int(config.text_config.layer_types.count("full_attention"))

    @override
    def make_tiny(self, directory: str | Path, *, corpus: Sequence[str]) -> Path:
        """Write the model of `make_tiny`, by its defaults."""
        return make_tiny(directory, corpus=corpus)


FAMILY = Qwen35()


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
    """Write a randomly initialised Qwen3.5 with its own tokenizer and processor, and return the directory.

    The defaults give 0.9 million parameters and 20 visual tokens a screenshot of 128 x 160. Every integer below 1000
    is one token, so a click is five or six.

    Args:
        directory: Created if missing; `from_pretrained` loads it.
        corpus: See Qwen3-VL's `make_tiny`, as for all that are not below.
        layers: Depth of the language model; two at least: every other one attends, the first is a Gated DeltaNet.
        rotary_sections: See Qwen3-VL's; they turn half of a head of attention, as a quarter of the real one's.
    """
    check_at_least(len(KINDS), layers=layers)
    tokenizer = train_tokenizer(corpus, words + SCALE, SCALE - 1, context)
    text = language_settings(tokenizer, hidden, layers, context, rotary_base, rotary_sections)
    text["rope_parameters"] |= {"mrope_interleaved": True, "partial_rotary_factor": 0.5}
    text |= {
        "num_attention_heads": hidden // (2 * HEAD_DIM),
        "num_key_value_heads": 1,
        "head_dim": 2 * HEAD_DIM,
        "layer_types": [KINDS[layer % len(KINDS)] for layer in range(layers)],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": DELTA_HEAD_DIM,
        "linear_value_head_dim": DELTA_HEAD_DIM,
    }
    vision = VISION | {"patch_size": PATCH, "out_hidden_size": hidden, "num_position_embeddings": PLACES}
    config = Qwen3_5Config(text_config=text, vision_config=vision, **shared_settings(tokenizer))
    return write_tiny(
        directory, Qwen3_5ForConditionalGeneration, config, tiny_processor(tokenizer, min_pixels, max_pixels), seed
    )
