"""The places of tensors: on a device, on the host, or in equal parts on all ranks (FSDP2, arXiv 2304.11277).

A rank holds a block's weights whole only while it computes that block, and while it loads it: the model is built
without memory (on the meta device), then one block after the other is read from the checkpoint and cut.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor


def to_host(tensor: Tensor) -> Tensor:
    """Return the tensor on the host, in pinned memory if it comes from a GPU, which torch keeps for those after it."""
    if tensor.is_cpu:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


def full(tensor: Tensor) -> Tensor:
    """Return a tensor whole, gathered from its shards where it has any: then every rank must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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

    Shards have the number format of the parameters, which are on the meta device before; gathered weights and the
    computation have `dtype`, and gradients are reduced in float32. With trainable parameters in float32 no update is
    lost in rounding, and no other copy of the weights is needed. Shared parameters stay shared. `read` gives the value
    of a parameter by its name in the policy and its shape.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    names = {module: name for name, module in policy.named_modules()}
    for unit in (*units, policy):
        load(unit, names[unit], read)  # of this unit alone: its values are let go when it is cut
        # The last unit too lets go after its forward: parameters are shards whenever nothing is computed, and a
        # forward without a backward leaves no weights behind that a later step would make old.
        fully_shard(unit, mesh=mesh, mp_policy=precision, reshard_after_forward=True)
    for entrance in ("action_logprobs", "visual_tokens"):
        register_fsdp_forward_method(policy, entrance)


def load(unit: nn.Module, place: str, read: Callable[[str, torch.Size], Tensor]) -> None:
    """Load the parameters of a part of a policy that are on the meta device; shared ones stay shared.

    `place` is the part's name in the policy. `read` gives the value of a parameter by its name there and its shape;
    one of its format is taken as it is.
    """
    loaded: dict[nn.Parameter, nn.Parameter] = {}
    for name, module in unit.named_modules(prefix=place):
        for key, empty in list(module.named_parameters(recurse=False)):
            if empty.is_meta:
                if empty not in loaded:
                    value = read(f"{name}.{key}", empty.shape).to(empty.dtype)
                    loaded[empty] = nn.Parameter(value, requires_grad=empty.requires_grad)
                module.register_parameter(key, loaded[empty])
