import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.errors import ConfigError, EngineError, WeightSyncError
from arpo.inference import hf
from arpo.inference.hf import HfEngine
from tests.inference.conftest import Questions, Trainer, together


def test_deterministic_means_every_bit_whatever_else_is_in_flight(
    tiny_model: Path, questions: Questions, closing: Any
) -> None:
    engine = closing(HfEngine(tiny_model, deterministic=True))
    requests = [questions.ask(n, images=1 + n % 3, seed=n) for n in range(6)]
    at_once = together(*(engine.generate(request) for request in reversed(requests)))
    one_by_one = [together(engine.generate(request))[0] for request in requests]
    assert at_once[::-1] == one_by_one


def test_an_update_without_a_tensor_is_refused_and_the_engine_serves_no_more(
    tiny_model: Path, questions: Questions, trainer: Trainer, closing: Any
) -> None:
    engine = closing(HfEngine(tiny_model))
    weights = trainer.changed(1)
    del weights[next(name for name in weights if name.endswith("visual.blocks.0.attn.proj.weight"))]
    with pytest.raises(WeightSyncError, match=r"missing from the update: .*visual\.blocks\.0\.attn\.proj\.weight"):
        asyncio.run(engine.update_weights(weights.items(), 1))
    with pytest.raises(EngineError, match="dead"):
        asyncio.run(engine.generate(questions.ask()))


def test_bfloat16_answers_nearly_the_same(
    tiny_model: Path, questions: Questions, trainer: Trainer, closing: Any
) -> None:
    engine = closing(HfEngine(tiny_model, dtype="bfloat16"))
    request = questions.ask(1, images=3)
    (response,) = together(engine.generate(request))
    assert 1e-6 < trainer.gap(request, response) < 0.1


def test_sampling_follows_the_distribution(
    tiny_model: Path, questions: Questions, trainer: Trainer, closing: Any
) -> None:
    engine = closing(HfEngine(tiny_model, max_batch=200))
    responses = together(*(engine.generate(questions.ask(max_tokens=1, seed=seed)) for seed in range(400)))
    probabilities = trainer.distributions(questions.ask(), responses[0])[0].exp()
    # The most probable half of the words should get its share of 400 draws; three standard deviations are 0.075.
    likely = probabilities.argsort(descending=True)[: len(probabilities) // 2]
    drawn = sum(response.token_ids[0] in set(likely.tolist()) for response in responses) / 400
    assert abs(drawn - float(probabilities[likely].sum())) < 0.075


@pytest.mark.parametrize("wrong", [{"dtype": "float8"}, {"max_batch": 0}, {"max_model_len": 0}])
def test_impossible_arguments_are_refused(tiny_model: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        HfEngine(tiny_model, **wrong)


def test_the_engine_leaves_the_global_random_numbers_alone(
    tiny_model: Path, questions: Questions, closing: Any
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    engine = closing(HfEngine(tiny_model))
    together(engine.generate(questions.ask()))
    assert torch.equal(torch.rand(1), expected)


def test_a_trainer_on_the_second_gpu_has_its_engine_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hf._device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert hf._device() == torch.device("cuda", 1)  # by its number: the engine's thread has another current one
