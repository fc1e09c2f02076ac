"""A policy of which everything is there but its weights."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoProcessor, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor
from typing_extensions import override

from arpo.models.policy import Policy
from arpo.models.sharding import model_without_weights
from arpo.models.tiny import make_tiny


class WeightlessPolicy(Policy):
    """A policy made from a checkpoint's configuration alone: its parameters are on the meta device."""

    @override
    def _load(self, dtype: torch.dtype, attention: str) -> Qwen2_5_VLForConditionalGeneration:
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
        architecture: The arguments of `transformers.Qwen2_5_VLConfig`.
        min_pixels: Smaller screenshots are enlarged to this.
        max_pixels: Larger screenshots are reduced to this.
    """
    with tempfile.TemporaryDirectory(prefix="arpo_plan_") as directory:
        path = make_tiny(directory, corpus=())
        (path / "model.safetensors").unlink()
        ids = Qwen2_5_VLConfig.from_pretrained(path)
        config = Qwen2_5_VLConfig(**architecture, image_token_id=ids.image_token_id, video_token_id=ids.video_token_id)
        config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
        config.save_pretrained(path)
        processor = AutoProcessor.from_pretrained(path)
        processor.image_processor = Qwen2VLImageProcessor(min_pixels=min_pixels, max_pixels=max_pixels)
        processor.save_pretrained(path)
        yield path
