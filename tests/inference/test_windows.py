"""Engine and trainer on a vision tower with windows, as the real one has: each has its own way through them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.inference.engine import InferenceEngine
from arpo.inference.hf import HfEngine
from arpo.models.collate import collate
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.policy import Policy
from arpo.models.tokenization import tokenize
from tests.conftest import TINY_CORPUS
from tests.inference.conftest import Questions, together
from tests.inference.talk import trajectory_of


def make_engine(kind: str, path: Path) -> InferenceEngine:
    if kind == "hf":
        return HfEngine(path)
    from arpo.inference.vllm import VllmEngine

    return VllmEngine(path, max_model_len=512, max_images=4, kv_cache_gb=0.125)


@pytest.mark.parametrize("kind", ["hf", pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.long])])
def test_engine_and_trainer_agree_on_windows(tmp_path: Path, kind: str, closing: Any) -> None:
    path = make_tiny(tmp_path, corpus=TINY_CORPUS * 4, words=600, full_attention=(1,))
    policy = Policy(path)
    with torch.no_grad():  # pictures must matter: an untrained tower hardly reaches the words
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    policy.save(path / "noisy")
    engine = closing(make_engine(kind, path / "noisy"))
    requests = [Questions(policy.chat).ask(number, seed=number) for number in range(3)]
    for request, response in zip(requests, together(*map(engine.generate, requests)), strict=True):
        trajectory = trajectory_of(request, response)
        batch = collate(tokenize(trajectory, policy.chat), trajectory.screenshots, policy.images)
        with torch.no_grad():
            output = policy.action_logprobs(batch)
        torch.testing.assert_close(output.logprobs[0], torch.tensor(response.logprobs), atol=1e-5, rtol=0)
