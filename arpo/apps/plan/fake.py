"""A run without its numbers: a policy without weights, floating-point tensors that have a shape and no content.

The way through a model is decided by whole numbers (which tokens were sampled, how large a screenshot is), so a model
runs unchanged, with any weights, on any machine, and every tensor has the size that it would have.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoProcessor
from typing_extensions import override

from arpo.models.checkpoint import model_without_weights
from arpo.models.family import family_named
from arpo.models.policy import Policy

aten = torch.ops.aten

INDEXING = (
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index_put.default,
    aten._index_put_impl_.default,
)
"""Operations whose second argument may hold masks: how much they take depends on a mask's content."""

COUNTING = (aten.arange.default, aten.arange.start, aten.arange.start_step, aten.full.default)
"""Operations that make whole numbers of whole numbers; others make floating-point numbers by default."""


class FakeFloats(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its base untyped
    """The part of a run without numbers that computes whole numbers for real, inside of a `FakeTensorMode`.

    A number read from a fake tensor, such as a loss or a norm, is 1.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart first
        if func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 1.0 if args[0].dtype.is_floating_point else 1
        if _is_whole(func, args, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func in INDEXING:
            return func(args[0], _positions(args[1]), *args[2:], **kwargs)
        if func is aten.masked_select.default:
            return aten.index.Tensor(args[0], _positions([args[1]]))
        return func(*args, **kwargs)


@contextmanager
def fake_floats() -> Iterator[FakeTensorMode]:
    """Compute with shapes alone inside of the block; real tensors may come in from outside."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, FakeFloats():  # type: ignore[no-untyped-call]  # torch leaves its base untyped
        yield mode


@contextmanager
def fake_ranks(count: int) -> Iterator[None]:
    """Let this process be the first of `count` ranks inside of the block, whose collectives return at once."""
    dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _is_whole(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operation reads and writes whole numbers only."""
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if any(isinstance(tensor, FakeTensor) or tensor.dtype.is_floating_point for tensor in tensors):
        return False
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return not dtype.is_floating_point
    return bool(tensors) or (func in COUNTING and all(isinstance(leaf, int) for leaf in tree_leaves(args)))


def _positions(indices: Any) -> list[Tensor | None]:
    """Return indices in which every real mask is replaced by the positions where it is true."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or isinstance(index, FakeTensor) or index.dtype != torch.bool:
            found.append(index)
        else:
            with unset_fake_temporarily():
                found.extend(index.nonzero().unbind(1))
    return found


class WeightlessPolicy(Policy):
    """A policy made from a checkpoint's configuration alone: its parameters are on the meta device."""

    @override
    def _load(self, dtype: torch.dtype, attention: str) -> Any:
        return model_without_weights(self.path, attention)

    @override
    def _offload(self) -> AbstractContextManager[object]:
        # The meta device stands for the host where the CPU stands for a GPU; whole numbers stay as they are.
        return saved_tensors_hooks(
            lambda tensor: tensor.to("meta") if tensor.is_floating_point() else tensor, lambda tensor: tensor.to("cpu")
        )


@contextmanager
def stand_in(architecture: Mapping[str, Any], min_pixels: int, max_pixels: int) -> Iterator[Path]:
    """Write the directory of a checkpoint without its weights, and remove it after the block.

    Its tokenizer is a small one of ours: what a tensor measures depends on the number of tokens, not on their meaning.
    `architecture` is the content of its `config.json`, `model_type` among it.
    """
    with tempfile.TemporaryDirectory(prefix="arpo_plan_") as directory:
        family = family_named(architecture.get("model_type"), "the architecture's model_type")
        path = family.tiny.make(directory, corpus=())
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
