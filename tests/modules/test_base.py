"""The common part of all modules: how callbacks come by it, its rate, its guard, its checkpoint."""

import logging
from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch

from arpo.callbacks.checkpoint import load_policy
from arpo.errors import ArpoError, ConfigError
from arpo.methods.distillation import Distillation
from arpo.methods.grpo import GRPO
from arpo.models.policy import LoraSettings, Policy
from arpo.modules.base import PolicyModule, rate_factor
from tests.modules.conftest import fit


def test_a_module_that_trains_a_policy_is_given_to_callbacks_and_another_is_refused_by_its_name(make_module):
    module = make_module()
    assert PolicyModule.of(module) is module
    with pytest.raises(ConfigError, match=r"that trains a policy, a PolicyModule, got LightningModule$"):
        PolicyModule.of(L.LightningModule())


def test_rewards_are_those_of_the_run_s_method_also_while_an_update_learns_by_another_one(make_module, make_group):
    module = make_module(format_weight=0.25)
    unparsed = [replace(trajectory, format_reward=-1.0) for trajectory in make_group(1.0, 0.0).trajectories]
    group = replace(make_group(1.0, 0.0), trajectories=tuple(unparsed))
    assert module.rewards(group).tolist() == [0.75, -0.25]
    module.objective = GRPO(format_weight=1.0)
    assert module.rewards(group).tolist() == [0.75, -0.25]


def test_a_checkpoint_holds_what_is_trained_and_the_rest_comes_from_the_model(make_module, tiny_model, tmp_path):
    make = partial(Policy, tiny_model, lora=LoraSettings(rank=4), train_vision=False)
    module = make_module()
    module.policy = make()
    with torch.no_grad():
        for parameter in module.trainable_parameters():
            parameter.add_(1.0)
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    assert len(checkpoint["state_dict"]) == 2 * 2 * 7  # A and B of seven layers in each of two blocks
    assert all(".lora_" in name for name in checkpoint["state_dict"])
    torch.save(checkpoint, tmp_path / "iteration_000001.ckpt")

    again = make()
    load_policy(again, tmp_path / "iteration_000001.ckpt")
    resumed = make_module()
    resumed.policy = make()
    resumed.on_load_checkpoint(checkpoint)
    resumed.load_state_dict(checkpoint["state_dict"])  # strictly, as Lightning does
    for policy in (again, resumed.policy):
        assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), module.policy.parameters(), strict=True))


def test_with_adapters_a_teacher_is_a_second_model_and_no_parameter(make_module, make_policy, make_group, tiny_model):
    teacher = make_policy()
    module = make_module(method=Distillation(), teacher=lambda: teacher)
    module.policy = Policy(tiny_model, lora=LoraSettings(rank=4), train_vision=False)
    with torch.no_grad():
        teacher.model.lm_head.weight.mul_(1.5)
    fit(module, [make_group(0.0, 0.0)])
    assert module.teachers == [teacher]
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(name.startswith("policy.") for name in module.state_dict())
    adapters = [value for name, value in module.policy.named_parameters() if "lora_B" in name]
    assert all(value.any() for value in adapters)  # they began at 0


def test_a_teacher_of_another_kind_is_refused_where_a_warm_start_made_the_policy(make_module, tiny_qwen3):
    with pytest.raises(ConfigError, match="has another family than the policy"):
        make_module(method=Distillation(), teacher=lambda: Policy(tiny_qwen3))


def test_the_rate_rises_by_equal_steps_from_above_zero_to_one_and_falls_by_equal_steps_to_a_rate():
    """The first step has none in the official code."""
    assert [rate_factor(step, warmup_steps=0) for step in (0, 5)] == [1.0, 1.0]
    assert [rate_factor(step, warmup_steps=3) for step in (0, 1, 2, 3, 100)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert [rate_factor(step, warmup_steps=0, decay_steps=4) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rate_factor(1, warmup_steps=3, decay_steps=4) == 0.5 * 0.75


def test_bad_gradients_are_left_out_and_the_third_in_a_row_ends_the_run(make_module, caplog):
    accepts = make_module()._accepts
    with caplog.at_level(logging.WARNING):
        assert [accepts(norm) for norm in (1.0, float("nan"), float("inf"))] == [True, False, False]
        assert accepts(2.0)  # a good one between them starts the count again
        assert [accepts(float("nan")) for _ in range(2)] == [False, False]
        with pytest.raises(ArpoError, match=r"3 times in a row.*smaller learning rate"):
            accepts(float("-inf"))
    assert caplog.text.count("left out") == 5
