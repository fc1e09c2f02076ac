"""Gradient checkpointing: what the forward pass keeps of a block, and what the backward pass computes again."""

from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from arpo.errors import ConfigError

Checkpointing = bool | Literal["selective"]
"""Whether a block keeps its input alone; `selective` keeps what its attention computed too."""

ATTENTION = [
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""The kernels of `sdpa` on CUDA and on the CPU.

Where none of them can, torch takes plain products and a softmax, which are computed again.
"""


def check_checkpointing(checkpointing: Checkpointing, *, attention: str, offload: bool) -> None:
    """Check that checkpointing fits the rest of a policy.

    Args:
        checkpointing: Of its blocks.
        attention: Its kernel.
        offload: Whether the inputs of blocks wait in the host's memory.
    """
    if checkpointing == "selective" and attention != "sdpa":
        raise ConfigError(f"gradient_checkpointing=selective needs attention=sdpa, got {attention}: set it to true")
    if offload and not checkpointing:
        raise ConfigError("offload_activations=true needs gradient_checkpointing=true, or there are too many")


def checkpoint_blocks(model: Any, checkpointing: Checkpointing) -> None:
    """Let the blocks of a model be checkpointed while it trains.

    The backward pass then finds what attention computed in the place of computing it again, as with the selective
    checkpointing of TorchTitan (arXiv 2410.06511), which keeps products too. The vision tower always keeps its inputs
    alone: its attention ends with a picture, so there is little to save.
    """
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if checkpointing == "selective":
        kept = partial(create_selective_checkpoint_contexts, ATTENTION)
        model.get_decoder().gradient_checkpointing_enable({"use_reentrant": False, "context_fn": kept})
