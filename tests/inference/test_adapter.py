"""LoRA on its way to the engine: the adapter arrives as it was trained, each version in the place of the last."""

import pytest
import torch

from arpo.errors import WeightSyncError
from arpo.inference.engine import Response
from arpo.inference.hf import HfEngine
from arpo.inference.vllm import VllmEngine
from arpo.models.collate import collate
from arpo.models.lora import adapter_tensors, merged_weights
from arpo.models.policy import LoraSettings, Policy
from arpo.models.tokenization import tokenize
from tests.inference.loop import run, together
from tests.inference.talk import questions, trainer_logprobs, trajectory_of
from tests.models.samples import with_random_lora


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        (HfEngine, {}),
        pytest.param(VllmEngine, {"lora_rank": 4}, marks=pytest.mark.engine),
        pytest.param(VllmEngine, {"lora_rank": 4, "fleet": True}, marks=[pytest.mark.ray, pytest.mark.long]),
    ],
)
def test_every_version_of_an_adapter_answers_as_the_trainer_s(start, tiny_model, questions, trainer, engine, options):
    engine = start(engine, **options)
    requests = [questions.ask(n, images=1 + n, seed=n) for n in range(3)]
    together(*(engine.generate(request) for request in requests))  # fills every cache there is, with the base
    for version in (1, 2, 3):
        policy = with_random_lora(tiny_model, seed=version)
        trainer.load({policy.family.checkpoint_name(name): weight for name, weight in merged_weights(policy.model)})
        run(engine.update_weights(policy.checkpoint_tensors(), version))
        responses = together(*(engine.generate(request) for request in requests))
        gaps = [trainer.gap(request, response) for request, response in zip(requests, responses, strict=True)]
        assert max(gaps) < 1e-4
        assert {response.policy_version for response in responses} == {version}


def mean_gap(policy, engine):
    """The mean distance of the log-probabilities of engine and trainer over a few hundred tokens."""
    requests = questions(policy.chat, 16)
    gaps = []
    for request, response in zip(requests, together(*map(engine.generate, requests)), strict=True):
        gaps.append((trainer_logprobs(policy, request, response) - torch.tensor(response.logprobs)).abs())
    return float(torch.cat(gaps).mean())


def one_step(path, rate):
    """A policy in bfloat16 after the first step of its adapter of rank 32."""
    policy = Policy(path, dtype="bfloat16", train_vision=False, lora=LoraSettings(rank=32, alpha=64.0))
    optimizer = torch.optim.AdamW([each for each in policy.parameters() if each.requires_grad], lr=rate)
    (request, *_) = questions(policy.chat, 8)
    ids = policy.chat.encode_response("Action: click(start_box='(10,20)')")
    trajectory = trajectory_of(request, Response(ids, (0.0,) * len(ids), "stop", 0))
    batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
    policy.action_logprobs(batch).logprobs.sum().backward()
    optimizer.step()
    return policy


@pytest.mark.long
@pytest.mark.engine
def test_in_bfloat16_vllm_applies_the_first_step_of_an_adapter_of_rank_32_within_a_hundredth(start, tiny_model):
    """Merged into bfloat16 weights, nearly all of it would be lost."""
    policy = one_step(tiny_model, rate=1e-5)
    engine = start(dtype="bfloat16", lora_rank=32)
    assert mean_gap(policy, engine) <= 0.05
    run(engine.update_weights(policy.checkpoint_tensors(), 1))
    assert engine._engine.list_loras() == {1}

    def applied(worker):
        manager = worker.model_runner.lora_manager._adapter_manager
        layer = manager.modules["language_model.model.layers.0.self_attn.o_proj"]
        slot = manager.lora_index_to_id.index(1)
        return layer.lora_b_stacked[0][slot, 0].float() @ layer.lora_a_stacked[0][slot, 0].float()

    (served,) = engine._engine.collective_rpc(applied)
    tensors = dict(adapter_tensors(policy.model))
    a, b = (tensors[f"model.language_model.layers.0.self_attn.o_proj.lora_{factor}.weight"] for factor in "AB")
    update = b @ a
    assert (served - update).norm() < 0.01 * update.norm()
    assert policy.update_error() == pytest.approx(((served - update).norm() / update.norm()).item(), rel=0.2)
    base = policy.model.model.language_model.layers[0].self_attn.o_proj.base_layer.weight
    merged = (base.float() + update).bfloat16().float() - base.float()
    assert (merged - update).norm() > 0.9 * update.norm()
    assert mean_gap(policy, engine) <= 0.05


@pytest.mark.long
@pytest.mark.engine
def test_an_engine_for_adapters_refuses_all_weights(start, tiny_model):
    engine = start(lora_rank=4)
    with pytest.raises(WeightSyncError, match="lora_rank=4 takes adapters, got all weights"):
        run(engine.update_weights(Policy(tiny_model).checkpoint_tensors(), 1))


def test_an_adapter_that_does_not_fit_the_model_is_refused(start, tiny_model):
    engine = start(HfEngine)
    sent = (name for name, _ in with_random_lora(tiny_model, seed=0).checkpoint_tensors())
    name = next(name for name in sent if name.endswith("self_attn.q_proj.lora_A.weight"))
    with pytest.raises(WeightSyncError, match=r"q_proj.lora_A.weight' is \(4, 100\), '.*weight' of the model is"):
        run(engine.update_weights([(name, torch.zeros(4, 100))], 1))
