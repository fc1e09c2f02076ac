"""What every module shares, and how callbacks come by it."""

from dataclasses import replace
from functools import partial

import lightning as L
import pytest
import torch

from arpo.callbacks.checkpoint import load_policy
from arpo.errors import ConfigError
from arpo.methods.distillation import Distillation
from arpo.methods.grpo import GRPO
from arpo.models.policy import LoraSettings, Policy
from arpo.modules.base import PolicyModule
from tests.modules.conftest import fit


def test_a_module_that_trains_a_policy_is_given_to_callbacks_as_what_it_is(make_module):
    module = make_module()
    assert PolicyModule.of(module) is module


def test_a_module_without_a_policy_is_refused_by_its_name():
    with pytest.raises(
        ConfigError, match=r"expected a module that trains a policy, a PolicyModule, got LightningModule$"
    ):
        PolicyModule.of(L.LightningModule())


def test_rewards_are_those_of_the_run_s_method_also_while_an_update_learns_by_another_one(make_module, make_group):
    module = make_module(format_weight=0.25)
    unparsed = [replace(trajectory, format_reward=-1.0) for trajectory in make_group(1.0, 0.0).trajectories]
    group = replace(make_group(1.0, 0.0), trajectories=tuple(unparsed))
    assert module.rewards(group).tolist() == [0.75, -0.25]
    module.objective = GRPO(format_weight=1.0)
    assert module.rewards(group).tolist() == [0.75, -0.25]


def test_many_trajectories_are_read_in_few_forwards_with_the_numbers_of_each_alone(make_module, make_group):
    """Float32, within 1e-6; rows of a chunk go longest first, and come back in the order given."""
    trajectories = make_group(0.0, 1.0, 0.0, 1.0, 0.0).trajectories
    alone = [make_module().sampled_logprobs([trajectory])[0] for trajectory in trajectories]
    assert len({len(row) for row in alone}) > 1
    # Three show one screenshot and two show two: together, they would be padded by more than 5 %.
    for micro_batch_tokens, forwards in ((65536, 2), (1, 5)):
        module = make_module(micro_batch_tokens=micro_batch_tokens)
        seen = []
        module.policy.model.get_input_embeddings().register_forward_hook(lambda *_, seen=seen: seen.append(1))
        together = module.sampled_logprobs(trajectories)
        assert len(seen) == forwards
        assert [len(row) for row in together] == [len(row) for row in alone]
        for row, expected in zip(together, alone, strict=True):
            assert row == pytest.approx(expected, rel=0, abs=1e-6)


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


def test_with_adapters_no_reference_is_loaded_because_their_base_is_it(make_module, tiny_model):
    module = make_module(reference=make_module, kl_coefficient=0.1)
    module.policy = Policy(tiny_model, lora=LoraSettings(rank=4), train_vision=False)
    module.references = []
    module.configure_model()
    assert module.references == []
