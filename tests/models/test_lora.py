"""Adapters: what they are called, what of them is lost, what they are worth when merged."""

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.inference.pump import base_name
from arpo.models.families.qwen2_5_vl import Qwen25VL
from arpo.models.lora import adapter_tensors, add_lora, initial_adapter, merged_weights, update_error, weights_by_name


@pytest.fixture
def model(tiny_model):
    """A frozen model with an adapter of rank 2 and scale 3, whose B are still zero."""
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model)
    add_lora(model, Qwen25VL.lora_targets, 2, 6.0)
    return model


def fill(model, size=0.001):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator))


def products(model):
    """B A of every layer, by the name of the weight that it is added to."""
    tensors = dict(adapter_tensors(model))
    firsts = ((name, tensor) for name, tensor in tensors.items() if ".lora_A." in name)
    return {base_name(name): tensors[name.replace(".lora_A.", ".lora_B.")] @ tensor for name, tensor in firsts}


def test_an_adapter_has_an_a_and_a_b_for_each_linear_layer_and_weights_keep_their_own_names(model, tiny_model):
    names = [name for name, _ in adapter_tensors(model)]
    assert names[:2] == [f"model.language_model.layers.0.self_attn.q_proj.lora_{factor}.weight" for factor in "AB"]
    assert len(names) == len(set(names)) == 2 * 7 * 2  # layers, linear layers of each, A and B
    assert base_name(names[1]) == "model.language_model.layers.0.self_attn.q_proj.weight"
    assert base_name("lm_head.weight") == "lm_head.weight"
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model)
    expected = {name for name, _ in plain.named_parameters()}
    assert dict(weights_by_name(model)).keys() == expected | dict(adapter_tensors(model)).keys()


def test_an_adapter_starts_the_same_where_a_trainer_makes_another_device_the_default():
    name, shape = "model.layers.0.mlp.up_proj.lora_A.default.weight", torch.Size((2, 8))
    torch.manual_seed(0)
    alone = initial_adapter(name, shape)
    with torch.device("meta"):  # as Lightning does with a GPU, while the policy is built
        beside = initial_adapter(name, shape)
    assert beside.is_cpu
    assert torch.equal(beside, alone)


def test_an_update_is_scaled_before_it_is_as_wide_as_its_layer(model):
    fill(model, 0.1)
    layer = model.model.language_model.layers[0].mlp.up_proj
    inputs = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(0))
    added = []
    layer.lora_B["default"].register_forward_hook(lambda module, narrow, output: added.append(output))
    output, base = layer(inputs), layer.base_layer(inputs)
    assert torch.equal(output, base + added[0])
    unscaled = inputs @ layer.lora_A["default"].weight.T @ layer.lora_B["default"].weight.T
    torch.testing.assert_close(output, base + 3 * unscaled)


def test_base_plus_b_times_a_is_the_merged_weight(model, tiny_model):
    """So the scale, 6 / 2, is in the adapter already."""
    fill(model, 0.1)
    base = dict(Qwen2_5_VLForConditionalGeneration.from_pretrained(tiny_model).named_parameters())
    updates = products(model)
    merged = dict(merged_weights(model))
    assert merged.keys() == base.keys()
    for name, weight in merged.items():
        update = updates.get(name, torch.zeros(()))
        torch.testing.assert_close(weight, base[name].detach() + update)
    assert len(updates) == 14


def test_of_a_merge_in_bfloat16_little_would_be_left_and_float32_keeps_it(model):
    model.bfloat16()
    fill(model, 1e-5)
    updates = products(model)
    base = {name.replace("base_layer.", ""): weight for name, weight in model.named_parameters()}
    for name, weight in merged_weights(model):
        if name in updates:
            update, kept = updates[name].float(), weight - base[name].float()
            rounded = weight.bfloat16().float() - base[name].float()
            assert (kept - update).norm() < 0.01 * update.norm()
            assert (rounded - update).norm() > 0.5 * update.norm()


def test_the_error_of_an_update_is_what_rounding_a_and_b_costs(model):
    assert update_error(model, torch.bfloat16) is None  # there is no update yet
    fill(model)
    assert update_error(model, torch.float32) == 0
    # Two factors, each rounded by at most 2^-9 of an entry, evenly spread: about sqrt(2) * 2^-9 / sqrt(3) = 0.0016.
    assert update_error(model, torch.bfloat16) == pytest.approx(0.0016, rel=0.5)


def test_the_error_of_an_update_is_of_the_first_a_middle_and_the_last_layer(model):
    layers = [name for name, parameter in model.named_parameters() if ".lora_B." in name]
    assert len(layers) == 14  # an even number has no layer exactly between
    parameters = dict(model.named_parameters())
    counted = []
    for name in layers:
        with torch.no_grad():
            parameters[name].fill_(1e-3)
            if update_error(model, torch.bfloat16) is not None:
                counted.append(layers.index(name))
            parameters[name].zero_()
    assert counted == [0, 6, 13]
