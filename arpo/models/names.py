"""The names of weights: `transformers` 5 renames a Qwen2.5-VL checkpoint as it loads, and keeps the new names."""

from torch import nn

RENAMED = (("model.visual.", "visual."), ("model.language_model.", "model."))
"""Modules carry the names on the left, published checkpoints, and so vLLM, those on the right."""

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
"""In a checkpoint only where the model does not share it with the embedding."""


def checkpoint_name(name: str) -> str:
    """Return a parameter's name as published Qwen2.5-VL checkpoints write it."""
    for ours, published in RENAMED:
        if name.startswith(ours):
            return published + name.removeprefix(ours)
    return name


def base_name(name: str) -> str:
    """Return the name of the weight that an adapter's tensor updates, or the name itself if it is a weight's."""
    layer, _, factor = name.partition(".lora_")
    return f"{layer}.weight" if factor else name


def trained_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the weights that a training's checkpoint holds: all that an update changes.

    A shared weight has each of its names. Frozen weights are where the policy was loaded from.
    """
    everything = module.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in everything if parameter.requires_grad)
