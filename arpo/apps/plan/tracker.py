"""The memory of a process by what it is for, at the moment when it is largest."""

import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor
from torch.distributed._tools.common_utils import get_untyped_storages
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

Category = Literal["parameters", "gathered", "gradients", "optimizer", "activations", "temporaries", "logits"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
Place = Category | Literal["host"]
MEANINGS: dict[Category, str] = {
    "parameters": "parameters, this GPU's share",
    "gathered": "parameters gathered from other GPUs, or cast",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations kept for the backward pass",
    "temporaries": "temporaries",
    "logits": "logits",
}

GATHER = "c10d::_allgather_base_"
"""Writes the parameters of all ranks into its first argument."""
UNPACK = "fsdp::split_with_sizes_copy"
"""Copies gathered parameters from one buffer into a tensor each."""
REDUCE = "c10d::_reduce_scatter_base_"
"""Writes this rank's part of the sum over ranks of its second argument into its first."""
SMALL = 2**10
"""Bytes below which a tensor is not looked at: a scalar or an index."""


class _Block:
    """A piece of memory that a tensor lives in."""

    __slots__ = ("__weakref__", "category", "reference", "size")

    def __init__(self, storage: torch.UntypedStorage, category: Place, tracker: "MemoryTracker") -> None:
        self.size = storage.size()
        self.category = category
        key = id(storage)
        self.reference = weakref.ref(storage, lambda _: tracker._add(tracker._blocks.pop(key).category, -self.size))


class _Unseen(nullcontext[None]):
    """A stretch of code whose tensors do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: Any) -> None:
        self.depth -= 1


class MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its base untyped
    """A count of the bytes of all tensors that are made inside of its block, real or fake.

    What is made before is counted once it is named with `mark`. What a kernel takes and gives back inside of one
    operation is not seen, which is what the reserve of a plan is for. The meta device stands for the host: what is
    moved there is counted apart. What is as wide as the vocabulary and has no other name counts as logits.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.vocabulary = vocabulary
        self.now: Counter[Place] = Counter()
        """Bytes at this moment."""
        self.peak: Counter[Category] = Counter()
        """Bytes of the device at the moment when their sum was largest."""
        self.host_peak = 0
        """Bytes of the host when they were most."""
        self._largest = 0
        self._total = 0
        self._blocks: dict[int, _Block] = {}
        self._unseen = _Unseen()

    def mark(self, tensors: Iterable[Tensor], category: Category) -> None:
        """Name tensors, and count those that are not counted yet."""
        for tensor in tensors:
            for storage in get_untyped_storages(tensor):
                self._count(storage, category)
                block = self._blocks[id(storage)]
                if block.category != "host":
                    self._add(block.category, -block.size)
                    self._add(category, block.size)
                    block.category = category
        self._compare()

    @override
    def __enter__(self) -> Self:
        # DTensor finds out shapes by running an operation on fake tensors as large as the whole, inside of this lock.
        self._lock, ShardingPropagator._fake_mode_lock = ShardingPropagator._fake_mode_lock, self._unseen
        self._resize = torch.UntypedStorage.resize_
        resize = self._resize

        def counted(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            self._measure(storage)
            return result

        # FSDP frees and allocates gathered parameters by this, past every dispatch; torch's own trackers do the same.
        torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign, assignment]  # put back in __exit__
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    @override
    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        ShardingPropagator._fake_mode_lock = self._lock
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]  # as it was

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it takes itself apart first
        result = func(*args, **kwargs or {})
        if self._unseen.depth:
            return result
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # in fact nothing is copied
        self._name(func._schema.name, args, kwargs)
        for tensor in tree_leaves(result):
            if not isinstance(tensor, Tensor) or isinstance(tensor, DTensor):
                continue
            storage = tensor.untyped_storage()
            if id(storage) in self._blocks:
                self._measure(storage)
            elif storage.size() >= SMALL:
                self._count(storage, self._category(func, args, tensor))
                self._compare()
        return result

    def _name(self, operation: str, args: Any, kwargs: Any) -> None:
        if operation == GATHER:
            self.mark([args[0]], "gathered")
        elif operation == UNPACK:
            self.mark(kwargs["out"], "gathered")
        elif operation == REDUCE:
            self.mark(args[:2], "gradients")

    def _category(self, func: Any, args: Any, tensor: Tensor) -> Place:
        if tensor.device.type == "meta":
            return "host"
        if func is torch.ops.aten._to_copy.default and self._is(args[0], "parameters"):
            return "gathered"
        if func is torch.ops.aten.zeros_like.default and self._is(args[0], "parameters"):
            return "optimizer"  # it makes its moments so, in its first step
        if tensor.ndim and tensor.shape[-1] == self.vocabulary:
            return "logits"
        backward = torch._C._current_graph_task_id() != -1
        if backward or not torch.is_grad_enabled():
            return "temporaries"
        return "activations"

    def _is(self, tensor: Tensor, category: Category) -> bool:
        block = self._blocks.get(id(tensor.untyped_storage()))
        return block is not None and block.category == category

    def _count(self, storage: torch.UntypedStorage, category: Place) -> None:
        if id(storage) not in self._blocks:
            block = self._blocks[id(storage)] = _Block(storage, category, self)
            self._add(category, block.size)

    def _measure(self, storage: torch.UntypedStorage) -> None:
        block = self._blocks.get(id(storage))
        if block is not None and block.size != storage.size():
            self._add(block.category, storage.size() - block.size)
            block.size = storage.size()
            self._compare()

    def _add(self, category: Place, size: int) -> None:
        self.now[category] += size
        if category == "host":
            self.host_peak = max(self.host_peak, self.now["host"])
        else:
            self._total += size

    def _compare(self) -> None:
        if self._total > self._largest:
            self._largest = self._total
            self.peak = Counter({category: self.now[category] for category in CATEGORIES})
