"""One copy of the weights: the policy's tensors are views of those of vLLM in its own process."""

import asyncio
import os
from importlib import import_module

import pytest
import torch
from torch import nn

from arpo.errors import EngineError, WeightSyncError
from arpo.inference.vllm import VllmEngine
from arpo.models.checkpoint import CheckpointWeights
from arpo.models.lora import weights_by_name
from arpo.models.policy import LoraSettings, Policy
from tests.inference.loop import run, together
from tests.inference.talk import questions, trainer_logprobs

WORKER = "arpo.inference.vllm_worker"
"""Not imported at the top of the file, which every process of pytest collects: vLLM takes three seconds."""
LORA = LoraSettings(rank=8, alpha=16.0)


def one_copy(start, path, dtype="float32", lora=None, *, train_vision=None, **options):
    """An engine, and a policy of its weights."""
    engine = start(path=path, dtype=dtype, lora_rank=lora and lora.rank)
    vision = lora is None if train_vision is None else train_vision
    policy = Policy(path, dtype=dtype, lora=lora, train_vision=vision, shared=run(engine.weights()), **options)
    if policy.shares_trained:
        run(engine.sleep())
    return engine, policy


def memory_of(engine):
    """Where the parameters of vLLM's own model are, from address to address."""
    (found,) = engine._engine.collective_rpc(lambda worker: [*worker.get_model().parameters()])
    return [(each.data_ptr(), each.data_ptr() + each.nbytes) for each in found]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("dtype", "lora", "train_vision"),
    [
        ("float32", None, True),
        ("float32", LORA, False),
        ("bfloat16", LORA, False),
        pytest.param("bfloat16", None, False, marks=pytest.mark.long),
    ],
)
def test_every_weight_of_the_engine_s_format_lies_in_the_engine_and_is_the_checkpoint_s(
    start, tiny_model, dtype, lora, train_vision
):
    engine, policy = one_copy(start, tiny_model, dtype, lora, train_vision=train_vision)
    memory, read = memory_of(engine), CheckpointWeights(tiny_model)
    weights = [(name, each) for name, each in weights_by_name(policy.model) if ".lora_" not in name]
    alike = [name for name, each in weights if each.dtype == policy.dtype]
    assert alike if train_vision or lora else 0 < len(alike) < len(weights)  # those in training are in float32
    for name, each in weights:
        inside = any(low <= each.data_ptr() and each.data_ptr() + each.nbytes <= high for low, high in memory)
        assert inside == (name in alike), name
        assert torch.equal(each, read[name].to(each.dtype)), name
    assert sum(each.numel() for each in policy.shared) == sum(each.numel() for name, each in weights if name in alike)
    assert policy.shares_trained == (lora is None and dtype == "float32")


def taught(policy, seed=1):
    """Change what is trained in place, as an optimizer does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in policy.parameters():
            if each.requires_grad:
                each.add_(0.05 * torch.randn(each.shape, generator=generator))


def gap(policy, engine):
    """The largest distance of the log-probabilities of engine and policy."""
    asked = questions(policy.chat, 3)
    answers = together(*map(engine.generate, asked))
    distances = [
        (trainer_logprobs(policy, request, answer) - torch.tensor(answer.logprobs)).abs().max()
        for request, answer in zip(asked, answers, strict=True)
    ]
    return float(max(distances)), {answer.policy_version for answer in answers}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("dtype", "lora", "in_turn", "largest"),
    [
        ("float32", None, True, 1e-4),
        ("float32", LORA, True, 1e-4),
        pytest.param("float32", None, False, 1e-4, marks=pytest.mark.long),
        pytest.param("bfloat16", None, True, 0.5, marks=pytest.mark.long),
    ],
)
def test_the_engine_answers_as_the_policy_whatever_it_was_sent(
    start, tiny_model, tmp_path, dtype, lora, in_turn, largest
):
    """All weights are shared and none sent; the base, and the adapter sent; nothing; or the vision tower."""
    vision = dtype == "float32" and lora is None
    engine, policy = one_copy(start, tiny_model, dtype, lora, train_vision=vision, share_trained=in_turn)
    own = {each.data_ptr() for each in policy.shared}
    sent = sum(each.nbytes for _, each in policy.checkpoint_tensors() if each.data_ptr() not in own)
    assert bool(policy.shared) == in_turn
    for version in (1, 2, 3):
        taught(policy, seed=version)
        run(engine.update_weights(policy.checkpoint_tensors(), version))
        distance, versions = gap(policy, engine)
        assert distance < largest
        assert versions == {version}
        assert engine.counters()["engine/moved_bytes"] == version * sent
        if policy.shares_trained:
            run(engine.sleep())
    last = {name: each.clone() for name, each in policy.saved_tensors()}
    run(engine.close())  # its memory stays as long as the policy does
    policy.save(tmp_path)
    saved = CheckpointWeights(tmp_path)
    assert saved.shapes.keys() == last.keys()
    assert all(torch.equal(saved[name], each) for name, each in last.items())


@pytest.mark.engine
def test_while_its_weights_are_trained_the_engine_answers_nothing(start, tiny_model):
    engine, policy = one_copy(start, tiny_model)
    with pytest.raises(EngineError, match="sleeps until the next weight update"):
        run(engine.generate(questions(policy.chat, 1)[0]))
    run(engine.update_weights(policy.checkpoint_tensors(), 1))

    async def sleep_while_asked():
        answers = [asyncio.ensure_future(engine.generate(each)) for each in questions(policy.chat, 4)]
        await asyncio.sleep(0)
        await engine.sleep()
        return [answer.policy_version for answer in await asyncio.gather(*answers)]

    assert set(run(sleep_while_asked())) == {1}  # what was in flight is answered first


@pytest.mark.engine
@pytest.mark.parametrize("lora", [None, LORA])
def test_a_weight_that_changes_while_the_engine_answers_is_noticed(start, tiny_model, lora):
    engine, policy = one_copy(start, tiny_model, lora=lora)
    run(engine.update_weights(policy.checkpoint_tensors(), 1))
    with torch.no_grad():
        policy.shared[5].view(-1)[3] += 0.5
    with pytest.raises((WeightSyncError, EngineError), match="changed while it answered"):
        run(engine.update_weights(policy.checkpoint_tensors(), 2) if lora else engine.sleep())


@pytest.mark.engine
def test_an_engine_of_whose_weights_no_policy_has_views_compares_none_that_change(start, tiny_model):
    engine = start()
    run(engine.weights())
    policy = Policy(tiny_model)
    run(engine.update_weights(policy.checkpoint_tensors(), 1))
    with torch.no_grad():
        run(engine.weights())[policy.family.embedding].add_(1)
    run(engine.update_weights(policy.checkpoint_tensors(), 2))
    assert gap(policy, engine)[0] < 1e-4


def test_a_weight_of_which_the_engine_has_other_values_than_the_checkpoint_is_not_shared(tiny_model, caplog):
    read = CheckpointWeights(tiny_model)
    shared = {name: read[name] for name in read.shapes}
    other = max(shared)
    shared[other] = shared[other] + 1
    policy = Policy(tiny_model, shared=shared)
    assert len(policy.shared) == len(shared) - 1
    assert (
        f"1 weights are not shared, in which the engine holds other values than the checkpoint, {other}" in caplog.text
    )
    assert all(torch.equal(each, read[name]) for name, each in weights_by_name(policy.model))


@pytest.mark.engine
def test_an_engine_that_puts_another_tensor_in_the_place_of_a_shared_one_is_noticed(start, tiny_model):
    engine, policy = one_copy(start, tiny_model)

    def replace(worker):
        each = next(worker.get_model().parameters())
        each.data = each.data.clone()

    engine._engine.collective_rpc(replace)
    taught(policy)
    with pytest.raises(WeightSyncError, match="holds other weights"):
        run(engine.update_weights(policy.checkpoint_tensors(), 1))


@pytest.mark.engine
def test_two_copies_are_two(start, tiny_model):
    engine = start(one_copy=False)
    assert run(engine.weights()) == {}


def test_weights_that_are_trained_are_shared_where_rollouts_wait_for_updates_alone(tiny_model):
    read = CheckpointWeights(tiny_model)
    shared = {name: read[name] for name in read.shapes}
    assert len(Policy(tiny_model, shared=shared).shared) == len(shared)
    apart = Policy(tiny_model, shared=shared, share_trained=False, train_vision=False)
    assert {id(each) for each in apart.shared} == {id(each) for each in apart.vision.parameters()}
    assert not apart.shares_trained


class Fused(nn.Module):
    """Loads a weight in three pieces, one that is turned, one into two tensors, and one that it computes with."""

    def __init__(self):
        super().__init__()
        self.fused = nn.Parameter(torch.zeros(10, 4))
        self.turned = nn.Parameter(torch.zeros(4, 6))
        self.one, self.two = nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(2, 4))
        self.scaled = nn.Parameter(torch.zeros(3))

    def load_weights(self, weights):
        given = dict(weights)
        for place in (1, 0, 2):  # as queries, keys and values do, in any order
            self.fused.data[3 * place : 3 * place + 3].copy_(given["pieces"][3 * place : 3 * place + 3])
        self.fused.data[9:].fill_(7)
        self.turned.data.copy_(given["turned"].t())
        self.one.data.copy_(given["halves"][:2])
        self.two.data.copy_(given["halves"][2:])
        self.scaled.data.copy_(given["scaled"] + 1)


def test_a_place_is_one_piece_of_memory_that_holds_a_tensor_as_it_is():
    worker = import_module(WORKER).WeightAccess()
    model = Fused()
    worker.get_model = lambda: model
    places = worker.places(
        {"pieces": (9, 4), "turned": (6, 4), "halves": (4, 4), "scaled": (3,), "absent": (1,)}, os.getpid()
    )
    assert places.keys() == {"pieces"}
    places["pieces"].copy_(torch.arange(36.0).view(9, 4))
    assert model.fused.flatten().tolist() == [*range(36), 0, 0, 0, 0]  # nothing else was written
    assert not any(each.any() for each in (model.turned, model.one, model.two, model.scaled))


def test_a_policy_of_another_process_gets_no_copies_in_the_place_of_views():
    worker = import_module(WORKER).WeightAccess()
    worker.get_model = Fused
    assert worker.places({"pieces": (9, 4)}, os.getpid() + 1) == {}


def test_pieces_in_another_order_are_no_place():
    source, target = torch.empty(4, 2, device="meta"), torch.zeros(4, 2)
    with import_module(WORKER).Copies() as copies:
        target[:2].copy_(source[2:])
        target[2:].copy_(source[:2])
    assert copies.target(source) is None


@pytest.mark.engine
def test_an_engine_of_several_processes_or_that_sleeps_shares_nothing(tiny_model, monkeypatch):
    monkeypatch.setattr(VllmEngine, "_launch", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for options in ({"sleeps": True}, {"engine_args": {"tensor_parallel_size": 2}}):
        assert VllmEngine(tiny_model, dtype="bfloat16", **options)._weights() == {}
