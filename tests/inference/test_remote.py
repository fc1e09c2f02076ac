"""What only an engine in another process has: the way there, and the death of the process."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from arpo.errors import ConfigError, EngineError, WeightSyncError
from arpo.host.trial import on_trial
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.hf import HfEngine
from arpo.inference.remote import RemoteEngine

pytestmark = pytest.mark.ray

ASK = GenerateRequest((1,), (), Sampling())


class Echo:
    """Answers with the sum of the weights it has; dies at a prompt of 13."""

    def __init__(self) -> None:
        self.total = 0.0
        self.version = 0

    async def generate(self, request: GenerateRequest) -> Response:
        if request.prompt_ids == (13,):
            os._exit(1)
        return Response((1,), (self.total,), "stop", self.version)

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        received = dict(tensors)
        assert received["bf16"].dtype == torch.bfloat16
        assert received["bf16"].shape == (2, 3)
        assert received["scalar"].shape == ()
        self.total = sum(float(tensor.float().sum()) for tensor in received.values())
        self.version = version

    async def close(self) -> None:
        """Nothing to free."""


def weights() -> Iterator[tuple[str, Tensor]]:
    yield "bf16", torch.full((2, 3), 0.5, dtype=torch.bfloat16)
    yield "scalar", torch.tensor(4.0)
    # Two of 40 MB fill more than one bucket.
    yield "large", torch.ones(10 * 2**20)
    yield "transposed", torch.ones(2**11, 5 * 2**10).T


def broken_weights() -> Iterator[tuple[str, Tensor]]:
    yield "scalar", torch.tensor(4.0)
    raise RuntimeError("the trainer has no more memory")


def test_weights_of_any_type_and_size_arrive_and_a_dead_process_is_an_engine_error() -> None:
    engine = RemoteEngine(Echo)
    asyncio.run(engine.update_weights(weights(), 3))
    response = asyncio.run(engine.generate(ASK))
    # 6 x 0.5 + 4 + 2 x 10 * 2^20
    assert response.logprobs == (3 + 4 + 2 * 10 * 2**20,)
    assert response.policy_version == 3
    with pytest.raises(WeightSyncError, match="in the middle") as caught:
        asyncio.run(engine.update_weights(broken_weights(), 4))
    assert "no more memory" in str(caught.value.__context__)
    with pytest.raises(EngineError, match="actor failed"):
        asyncio.run(engine.generate(GenerateRequest((13,), (), Sampling())))
    with pytest.raises(EngineError):
        asyncio.run(engine.close())
    asyncio.run(engine.close())


def test_an_engine_that_refuses_its_arguments_says_so(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="max_batch"):
        RemoteEngine(lambda: HfEngine(tiny_model, max_batch=0))


@pytest.mark.parametrize("wrong", [{"num_gpus": -1}, {"threads": 0}])
def test_impossible_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        RemoteEngine(Echo, **wrong)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"wants 99 GPUs.*or set num_gpus=0"):
        RemoteEngine(Echo, num_gpus=99)


def test_gpus_that_this_machine_lacks_are_missed_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="wants 99 GPUs"), on_trial():
        RemoteEngine(Echo, num_gpus=99)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with on_trial():
        RemoteEngine(Echo, num_gpus=99)  # Ray knows what the cluster has
