"""An extension of vLLM's workers: weights that come by a file, and the checksums of those that a worker holds.

Each worker's process imports this file before it loads a model, and packs no weights from then on.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
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
