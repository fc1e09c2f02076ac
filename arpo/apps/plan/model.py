"""A policy of which everything is there but its weights."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoConfig, AutoProcessor
from typing_extensions import override

from arpo.models.family import family_named
from arpo.models.policy import Policy
from arpo.models.sharding import model_without_weights


class WeightlessPolicy(Policy):
    """A policy made from a checkpoint's configuration alone: its parameters are on the meta device."""

    @override
    def _load(self, dtype: torch.dtype, attention: str) -> Any:
        return model_without_weights(self.path, attention)

    @override
    def _offload(self) -> AbstractContextManager[object]:
        return saved_tensors_hooks(_to_host, _to_device)


def _to_host(tensor: Tensor) -> Tensor:
    """Move a tensor to what stands for the host where the CPU stands for a GPU; whole numbers stay as they are."""
    return tensor.to("meta") if tensor.is_floating_point() else tensor


def _to_device(tensor: Tensor) -> Tensor:
    return tensor.to("cpu")


@contextmanager
def stand_in(architecture: Mapping[str, Any], min_pixels: int, max_pixels: int) -> Iterator[Path]:
    """Write the directory of a checkpoint without its weights, and remove it after the block.

    Its tokenizer is a small one of ours: what a tensor measures depends on the number of tokens, not on their meaning.

    Args:
        architecture: What its `config.json` says, `model_type` among it.
        min_pixels: Smaller screenshots are enlarged to this.
        max_pixels: Larger screenshots are reduced to this.
    """
    with tempfile.TemporaryDirectory(prefix="arpo_plan_") as directory:
        family = family_named(architecture.get("model_type"), "the architecture's model_type")
        path = family.make_tiny(directory, corpus=())
        (path / "model.safetensors").unlink()
        tiny = AutoConfig.from_pretrained(path)
        config = type(tiny)(**architecture, image_token_id=tiny.image_token_id, video_token_id=tiny.video_token_id)
        config.architectures = tiny.architectures
        config.save_pretrained(path)
        processor = AutoProcessor.from_pretrained(path)
        images = processor.image_processor
        sizes = {"patch_size": images.patch_size, "min_pixels": min_pixels, "max_pixels": max_pixels}
        processor.image_processor = type(images)(**sizes)
        processor.save_pretrained(path)
        yield path
