"""Qwen3.5, its dense models, and so UI-Venus 2: all in which they differ from Qwen3-VL."""

from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration
from typing_extensions import override

from arpo.models.families.qwen2_5_vl import Qwen25VL
from arpo.models.families.qwen3_vl import PATCH, Qwen3VL, tower_of
from arpo.models.tiny import HEAD_DIM
from arpo.models.vision.tower import VisionTower

DELTA_HEAD_DIM = 128
"""The width of heads of Gated DeltaNet, the real model's: vLLM's CPU kernel takes no head of 32."""
KINDS = ("linear_attention", "full_attention")
"""Layers of the tiny language model, in turns: Gated DeltaNet (arXiv 2412.06464) and attention. The published models
have three of the former to one of the latter."""


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
    recurrent = True
    tiny = replace(
        Qwen3VL.tiny,
        model=Qwen3_5ForConditionalGeneration,
        config=Qwen3_5Config,
        rotations={"mrope_interleaved": True, "partial_rotary_factor": 0.5},  # half of a head's; a quarter of the real
        least_layers=len(KINDS),
        text=lambda hidden, layers: {
            "num_attention_heads": hidden // (2 * HEAD_DIM),
            "num_key_value_heads": 1,
            "head_dim": 2 * HEAD_DIM,
            "layer_types": [KINDS[layer % len(KINDS)] for layer in range(layers)],
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": DELTA_HEAD_DIM,
            "linear_value_head_dim": DELTA_HEAD_DIM,
        },
        vision={"patch_size": PATCH, "num_position_embeddings": 64},
    )
    # Without DeepStack, as before it.
    blocks = Qwen25VL.blocks
    hidden_states = Qwen25VL.hidden_states
    visual_width = Qwen25VL.visual_width

    @override
    def tower(self, model: Any, mean: Tensor, std: Tensor) -> VisionTower:
        """Return the vision tower."""
        return tower_of(model.model.visual, mean, std)

    @override
    def attention_layers(self, config: Any) -> int:
        """Return the number of layers that are no Gated DeltaNet."""
        return int(config.text_config.layer_types.count("full_attention"))


FAMILY = Qwen35()

make_tiny = FAMILY.tiny.make
"""The writer of a tiny model with random weights."""
