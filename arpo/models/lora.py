"""Low-rank adapters (LoRA, arXiv 2106.09685): added to a model, named, measured, merged."""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.layer import LoraVariant
from torch import Tensor, nn

from arpo.models.placement import full

ADAPTER = "default"
"""The name by which PEFT keeps the one adapter there is."""

MEASURED_LAYERS = 3
"""Layers in which `update_error` compares; each takes two products as large as its weight."""


class ScaledWhereNarrow(LoraVariant):  # type: ignore[misc]  # peft has no types
    """Plain LoRA whose scale is applied to the rank's few columns and not to an output as wide as the layer's."""

    @staticmethod
    def forward(module: LoraLayer, active_adapter: str, x: Tensor, result: Tensor, **_: object) -> Tensor:
        """Return the layer's result with the update added."""
        narrow = module.lora_A[active_adapter](x) * module.scaling[active_adapter]
        updated: Tensor = result + module.lora_B[active_adapter](narrow)
        return updated


def add_lora(model: nn.Module, targets: str, rank: int, alpha: float) -> None:
    """Put low-rank updates B A, scaled by alpha / rank, into the modules of a model that a pattern names, in place.

    There is no wrapper, which would rename everything.
    """
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=targets)
    inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    for _, layer in _layers(model):
        layer.cast_input_dtype_enabled = False  # autocast does it, without a float32 copy of every input
        layer.lora_variant[ADAPTER] = ScaledWhereNarrow()


def initial_adapter(name: str, shape: torch.Size) -> Tensor:
    """Return an adapter's first value: A random as in a linear layer, B zero (arXiv 2106.09685, section 4.1).

    It is a function of the run's seed and the parameter's name, so any number of ranks starts alike.
    """
    if ".lora_B." in name:
        return torch.zeros(shape)
    # On the host, also where a trainer has made its GPU the default: numbers of another device would be others.
    generator = torch.Generator("cpu").manual_seed(torch.initial_seed() ^ crc32(name.encode()))
    return nn.init.kaiming_uniform_(torch.empty(shape, device="cpu"), a=5**0.5, generator=generator)


@torch.no_grad()
def start_adapters(model: nn.Module) -> None:
    """Set every adapter to its initial value."""
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.copy_(initial_adapter(name, parameter.shape))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Leave the updates out of what the model computes, for a while."""
    layers = [layer for _, layer in _layers(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def weights_by_name(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every weight by its name in the model without adapters, an adapter's as `adapter_tensors` has it."""
    # named_parameters gives a tied output layer once, as the embedding.
    for name, parameter in model.named_parameters():
        yield name.replace(".base_layer.", ".").replace(f".{ADAPTER}.", "."), parameter


def adapter_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield `….lora_A.weight` and `….lora_B.weight` of every layer with an update, which is their product B A.

    The scale of the update is in B, so that nothing else needs to know it.
    """
    for name, layer in _layers(model):
        yield f"{name}.lora_A.weight", layer.lora_A[ADAPTER].weight.detach()
        yield f"{name}.lora_B.weight", layer.lora_B[ADAPTER].weight.detach() * layer.scaling[ADAPTER]


def update_error(model: nn.Module, dtype: torch.dtype) -> float | None:
    """Return ‖update in the engine's format - update‖ / ‖update‖ over a few layers; None before the first update.

    The layers are the first one with an update, the last, and one between. An engine in bfloat16 rounds A and B, each
    to 2^-9 of its size; of a base weight that an update was merged into, it would round away nearly the whole update.
    """
    factors = [full(tensor) for _, tensor in adapter_tensors(model)]
    pairs = list(zip(factors[0::2], factors[1::2], strict=True))
    last = len(pairs) - 1
    error = update = 0.0
    for a, b in (pairs[place * last // (MEASURED_LAYERS - 1)] for place in range(MEASURED_LAYERS)):
        exact = b @ a
        error += (b.to(dtype).float() @ a.to(dtype).float() - exact).square().sum().item()
        update += exact.square().sum().item()
    return (error / update) ** 0.5 if update else None


def merged_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights by their names in the model without adapters; where there is an update, base + B A in float32.

    Rounded to bfloat16 the sum would lose every change below half a unit in the last place of the base.
    """
    layers = {f"{name}.": layer for name, layer in _layers(model)}
    for name, parameter in model.named_parameters():
        owner, _, own_name = name.partition("base_layer.")
        if owner in layers and own_name == "weight":
            layer = layers[owner]
            first, second = (full(part[ADAPTER].weight.detach()) for part in (layer.lora_A, layer.lora_B))
            yield owner + own_name, full(parameter.detach()).float() + second @ first * layer.scaling[ADAPTER]
        elif ".lora_" not in name:
            yield owner + own_name, parameter.detach()


def _layers(model: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Yield every layer with an adapter, by its name."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield name, module
