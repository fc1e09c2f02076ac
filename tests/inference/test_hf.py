"""The engine of transformers, and engines and trainer on a vision tower with windows."""

import pytest
import torch

from arpo.inference import hf
from arpo.inference.hf import HfEngine
from arpo.inference.vllm import VllmEngine
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.policy import Policy
from tests.conftest import TINY_CORPUS
from tests.inference.conftest import Questions
from tests.inference.loop import together
from tests.inference.talk import trainer_logprobs


def test_deterministic_means_every_bit_whatever_else_is_in_flight(questions, start):
    engine = start(HfEngine, deterministic=True)
    requests = [questions.ask(n, images=1 + n % 3, seed=n) for n in range(6)]
    at_once = together(*(engine.generate(request) for request in reversed(requests)))
    one_by_one = [together(engine.generate(request))[0] for request in requests]
    assert at_once[::-1] == one_by_one


def test_bfloat16_answers_nearly_the_same(questions, trainer, start):
    engine = start(HfEngine, dtype="bfloat16")
    request = questions.ask(1, images=3)
    (response,) = together(engine.generate(request))
    assert 1e-6 < trainer.gap(request, response) < 0.1


def test_sampling_follows_the_distribution(questions, trainer, start):
    engine = start(HfEngine, max_batch=200)
    responses = together(*(engine.generate(questions.ask(max_tokens=1, seed=seed)) for seed in range(400)))
    probabilities = trainer.distributions(questions.ask(), responses[0])[0].exp()
    # The most probable half of the words should get its share of 400 draws; three standard deviations are 0.075.
    likely = probabilities.argsort(descending=True)[: len(probabilities) // 2]
    drawn = sum(response.token_ids[0] in set(likely.tolist()) for response in responses) / 400
    assert abs(drawn - float(probabilities[likely].sum())) < 0.075


def test_the_engine_leaves_the_global_random_numbers_alone(questions, start):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    together(start(HfEngine).generate(questions.ask()))
    assert torch.equal(torch.rand(1), expected)


def test_a_trainer_on_the_second_gpu_has_its_engine_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hf._device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert hf._device() == torch.device("cuda", 1)  # by its number: the engine's thread has another current one


@pytest.mark.parametrize("engine", [HfEngine, pytest.param(VllmEngine, marks=[pytest.mark.engine, pytest.mark.long])])
def test_engine_and_trainer_agree_on_windows(tmp_path, engine, start):
    path = make_tiny(tmp_path, corpus=TINY_CORPUS * 4, words=600, vision={"fullatt_block_indexes": [1]})
    policy = Policy(path)
    with torch.no_grad():  # pictures must matter: an untrained tower hardly reaches the words
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    policy.save(path / "noisy")
    engine = start(engine, path / "noisy")
    requests = [Questions(policy.chat).ask(number, seed=number) for number in range(3)]
    for request, response in zip(requests, together(*map(engine.generate, requests)), strict=True):
        ours, theirs = trainer_logprobs(policy, request, response), torch.tensor(response.logprobs)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
