"""An extension of vLLM's workers: weights that come by a file; the checksums and places of those it holds.

Each worker's process imports this file before it loads a model, and packs no weights from then on.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm import _custom_ops
from vllm.model_executor.layers import utils

from arpo.inference.pump import checksum, combine_checksums

# On a CPU, matrices packed for vLLM's own oneDNN: packing them has crashed at one start in some hundred.
_custom_ops._supports_onednn = False
# Nor for tiles of AMX: a packed copy could not be compared with what was sent.
utils.check_cpu_sgl_kernel = lambda *_: False


class WeightAccess:
    """A mixin of vLLM's worker class, for what has to happen in the worker's process."""

    reload_weights: Any
    get_model: Any
    _kept: Sequence[tuple[Tensor, Tensor]] = ()

    def keep_plain_tensors(self) -> None:
        """Copy to host memory what a sleep of level 2 forgets and no update brings: see `_plain`."""
        self._kept = [(tensor, tensor.to("cpu", copy=True)) for tensor in _plain(self.get_model())]

    @torch.inference_mode()  # in which vLLM may have made them; elsewhere such a tensor takes no values
    def restore_plain_tensors(self) -> None:
        """Write back what `keep_plain_tensors` has copied, once the memory of the weights is there again."""
        for tensor, value in self._kept:
            tensor.copy_(value)
        self._kept = ()

    def load_file(self, path: str) -> None:
        """Load the tensors of a safetensors file; each worker keeps its shard."""
        self.reload_weights(weights_iterator=load_file(path).items())

    def checksums(self, adapter: bool) -> dict[str, int]:
        """Return the checksum of each tensor that this worker holds, by its name in vLLM.

        Args:
            adapter: Whether only those of the adapter count, of which a worker holds one.
        """
        tensors = _adapter(self.get_model()) if adapter else _weights(self.get_model())
        return {name: combine_checksums([(name, checksum(tensor))]) for name, tensor in tensors}

    def places(self, shapes: Mapping[str, tuple[int, ...]], process: int) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint as views of this worker's weights, those that lie there in one piece.

        vLLM's own loader says where: it is given tensors without memory, and what it copies is written down, not done.
        A caller in another process would get copies, and gets none.
        """
        if os.getpid() != process:
            return {}
        model = self.get_model()
        dtype = next(model.parameters()).dtype
        given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}
        with _without_adapters(model), Copies() as copies:
            model.load_weights(iter(given.items()))
        found = {name: copies.target(tensor) for name, tensor in given.items()}
        return {name: view for name, view in found.items() if view is not None}


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """The copies from tensors without memory that a loader asks for, none of which is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """Targets and sources, by the storage of the source."""

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.copy_.default:
            self._made[args[1].untyped_storage()._cdata].append((args[0], args[1]))
            return args[0]
        if func in (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default):  # the padding of a vocabulary
            return args[0]
        return func(*args, **(kwargs or {}))

    def target(self, source: Tensor) -> Tensor | None:
        """Return a view of the one piece of memory that a tensor was to be copied to; None where it is in several."""
        made = sorted(self._made[source.untyped_storage()._cdata], key=lambda copy: copy[1].storage_offset())
        starts = {to.data_ptr() - part.storage_offset() * to.itemsize for to, part in made}
        if len(starts) != 1 or sum(to.numel() for to, _ in made) != source.numel():
            return None
        if not all(to.is_contiguous() and part.is_contiguous() for to, part in made):
            return None
        first = made[0][0]  # which vLLM may have made in inference mode: a tensor of its own has a gradient
        view = torch.empty(0, dtype=first.dtype, device=first.device)
        return view.set_(first.untyped_storage(), first.storage_offset(), source.shape, source.stride())


@contextmanager
def _without_adapters(model: nn.Module) -> Iterator[None]:
    """Take vLLM's layers with adapters out of a model for a while, whose loader knows the layers below them."""
    layers = [
        (owner, name, layer, base)
        for owner in model.modules()
        for name, layer in owner.named_children()
        for own, base in layer.named_children()
        if own == "base_layer"
    ]
    for owner, name, _, base in layers:
        owner.register_module(name, base)
    try:
        yield
    finally:
        for owner, name, layer, _ in layers:
            owner.register_module(name, layer)


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight; queries, keys and values apart, because several GPUs may hold the same keys."""
    heads = {name: layer for name, layer in model.named_modules() if type(layer).__name__ == "QKVParallelLinear"}
    for name, weight in model.named_parameters():
        layer: Any = heads.get(name.rpartition(".")[0])
        if layer is None:
            yield name, weight
            continue
        keys = layer.num_kv_heads * layer.head_size
        yield f"{name}.q", weight[: -2 * keys]
        yield f"{name}.k", weight[-2 * keys : -keys]
        yield f"{name}.v", weight[-keys:]


def _plain(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that modules hold, in lists and mappings too, but for parameters, buffers and views of them.

    Such are the stages of Qwen3-VL's DeepStack, which each step adds to its hidden states, and which are 0 where there
    is no picture: garbage in them would change every response. Keys and values have memory of their own.
    """
    known = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    for layer in model.modules():
        for value in tree_leaves({name: value for name, value in vars(layer).items() if name != "kv_cache"}):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in known:
                yield value


def _adapter(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices of the adapter in its slot, which is padded with zeros to the rank that vLLM reserves."""
    for name, layer in model.named_modules():
        for kind in ("lora_a_stacked", "lora_b_stacked"):
            for number, matrix in enumerate(vars(layer).get(kind, ())):
                yield f"{name}.{kind}.{number}", matrix
