"""FSDP2: weights, gradients and optimizer states in equal parts on all ranks (arXiv 2304.11277).

A rank holds a block's weights whole only while it computes that block, and while it loads it: the model is built
without memory (on the meta device), then one block after the other is read from the checkpoint and cut.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import AutoConfig

from arpo.errors import ConfigError
from arpo.models.family import checkpoint_directory, family_of


class CheckpointWeights:
    """The tensors of a checkpoint by their names there or in its model, each read when it is asked for.

    Args:
        path: Directory or hub name.
    """

    def __init__(self, path: str | Path) -> None:
        self.directory = checkpoint_directory(path)
        files = sorted(self.directory.glob("*.safetensors"))
        if not files:
            raise ConfigError(f"no *.safetensors in '{self.directory}'; point path at a from_pretrained directory")
        family = family_of(self.directory)
        self._published = family.checkpoint_name
        unused = re.compile("|".join(family.model_class._keys_to_ignore_on_load_unexpected or ["(?!)"]))
        self._places: dict[str, tuple[Path, str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shape of each by its published name."""
        for file in files:
            with safe_open(file, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 - not a mapping
                    if unused.search(key):  # of a head that guesses further tokens, which the model class leaves out
                        continue
                    self._places[self._published(key)] = file, key
                    self.shapes[self._published(key)] = tuple(tensors.get_slice(key).get_shape())

    def __getitem__(self, name: str) -> Tensor:
        name = self._published(name)
        if name not in self._places:
            raise ConfigError(f"'{self.directory}' has no weight {name}: it is not a checkpoint of this model")
        file, key = self._places[name]
        with safe_open(file, framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(key)
        return tensor


def model_without_weights(path: str | Path, attention: str) -> Any:
    """Return the model of a checkpoint with all parameters on the meta device; its buffers are real."""
    kind, config = family_of(path).model_class, AutoConfig.from_pretrained(path)
    with init_empty_weights(include_buffers=False):
        model = kind._from_config(config, attn_implementation=attention, dtype=torch.float32)
    model.tie_weights()  # putting a parameter on the meta device made two of a shared one
    return model


def shard(
    policy: nn.Module,
    units: Sequence[nn.Module],
    mesh: DeviceMesh,
    dtype: torch.dtype,
    read: Callable[[str, torch.Size], Tensor],
) -> None:
    """Load a policy without weights and cut it over the ranks of a mesh, unit by unit.

    A unit is gathered, computed and let go as one. The policy itself is the last of them: embedding, output layer and
    the rest. It is entered by `action_logprobs` and `visual_tokens`; a submodule called past it finds shards where it
    expects weights.

    Shards have the number format of the parameters; gradients are reduced in float32. With trainable parameters in
    float32 no update is lost in rounding, and no other copy of the weights is needed.

    Args:
        policy: With parameters on the meta device; those that are shared stay shared.
        units: Its blocks, none inside another.
        mesh: One dimension of ranks. With a GPU mesh, shards go to the current GPU.
        dtype: Of gathered weights and of the computation.
        read: Gives the value of a parameter by its name in the policy and its shape.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    names = {module: name for name, module in policy.named_modules()}
    for unit in (*units, policy):
        loaded: dict[nn.Parameter, nn.Parameter] = {}  # of this unit alone: its values are let go when it is cut
        for module in unit.modules():
            for key, empty in list(module.named_parameters(recurse=False)):
                if empty.is_meta:
                    if empty not in loaded:
                        value = read(f"{names[module]}.{key}", empty.shape).to(empty.dtype)
                        loaded[empty] = nn.Parameter(value, requires_grad=empty.requires_grad)
                    module.register_parameter(key, loaded[empty])
        # The last unit too lets go after its forward: parameters are shards whenever nothing is computed, and a
        # forward without a backward leaves no weights behind that a later step would make old.
        fully_shard(unit, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    for entrance in ("action_logprobs", "visual_tokens"):
        register_fsdp_forward_method(policy, entrance)


def full(tensor: Tensor) -> Tensor:
    """Return a tensor whole, gathered from its shards where it has any: then every rank must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
