"""The names of weights that no family of models gives: the output layer's, an adapter's, those of what is trained."""

from torch import nn

HEAD = "lm_head.weight"
"""In a checkpoint only where the model does not share it with the embedding."""


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
