"""The checksum of weights, and engines whose weights are partly old, caught by it at their first sync."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from arpo.errors import WeightSyncError
from arpo.inference.checksum import ChecksummedTensors, checksum, together
from arpo.inference.hf import HfEngine
from arpo.models.policy import Policy

FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@FORMATS
def test_slices_of_a_fused_and_padded_tensor_add_up_to_what_it_was_made_of(dtype: torch.dtype) -> None:
    fused = torch.cat([random(6, 4, dtype=dtype), torch.zeros(2, 4, dtype=dtype)]).T
    parts = random(6, 4, dtype=dtype).split(2)
    sliced = [(f"layers.3.{name}", checksum(part)) for name, part in zip("qkv", parts, strict=True)]
    assert together([("layers.3.qkv", checksum(fused))]) == together(sliced)


@FORMATS
def test_one_bit_of_one_element_changes_it_and_so_does_an_exchange_of_two_halves_of_a_change(
    dtype: torch.dtype,
) -> None:
    whole = random(100, dtype=dtype)
    bits = whole.clone().view(torch.int32 if dtype == torch.float32 else torch.int16)
    bits[17] ^= 1
    one = bits.view(dtype)
    assert int(checksum(one)) != int(checksum(whole))
    bits[18] += 1  # one element a step up and another one a step down
    bits[17] = whole.view(bits.dtype)[17] - 1
    assert int(checksum(bits.view(dtype))) != int(checksum(whole))


def test_two_layers_that_are_exchanged_change_it() -> None:
    first, second = checksum(random(10)), checksum(torch.ones(10))
    sound = together([("model.layers.0.mlp.weight", first), ("model.layers.1.mlp.weight", second)])
    assert together([("model.layers.0.mlp.weight", second), ("model.layers.1.mlp.weight", first)]) != sound


def test_what_is_received_counts_in_the_format_of_the_engine() -> None:
    received = ChecksummedTensors([("a", random(10)), ("b", torch.ones(3))], torch.bfloat16)
    assert [name for name, _ in received] == received.names == ["a", "b"]
    assert received.checksum == together([("a", checksum(random(10).bfloat16())), ("b", checksum(torch.ones(3)))])


class Misses(HfEngine):
    """Never copies one tensor."""

    end: ClassVar[str] = "layers.0.mlp.up_proj.weight"

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        super()._load((name, tensor) for name, tensor in tensors if not name.endswith(self.end))


class OneBehind(HfEngine):
    """Serves the weights of the update before, with the number of the new ones."""

    _before: list[tuple[str, Tensor]] | None = None

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        new = [(name, tensor.clone()) for name, tensor in tensors]
        super()._load(self._before or new)
        self._before = new


@FORMATS
@pytest.mark.parametrize("rate", [7e-4, 1e-5])
@pytest.mark.parametrize(("engine", "caught_at"), [(HfEngine, None), (Misses, 1), (OneBehind, 2)])
def test_an_engine_that_is_partly_old_is_caught_at_its_first_sync_and_a_sound_one_passes(
    tiny_model: Path, closing: Callable[[Any], Any], engine: type[HfEngine], caught_at: int, dtype: Any, rate: float
) -> None:
    served = closing(engine(tiny_model, dtype=str(dtype).removeprefix("torch.")))
    policy = Policy(tiny_model)
    for version in range(1, (caught_at or 4) + 1):
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(rate * torch.randn(weight.shape).sign())
        update = served.update_weights(policy.checkpoint_tensors(), version)
        if version == caught_at:
            with pytest.raises(WeightSyncError, match=f"to policy version {version} the engine holds other weights"):
                asyncio.run(update)
        else:
            asyncio.run(update)
