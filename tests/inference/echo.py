"""Fake engines for actors, in a light module: each of their processes imports it, and none needs transformers."""

import os
import sys
from collections.abc import Iterable

import ray
import torch
from torch import Tensor

from arpo.errors import EngineError
from arpo.inference.engine import GenerateRequest, Response


class Echo:
    """Answers with the sum of the weights it has."""

    def __init__(self) -> None:
        sys.stderr.write("ready\n")
        self.total = 0.0
        self.version = 0
        self.asleep = False

    async def generate(self, request: GenerateRequest) -> Response:
        return Response((1,), (self.total,), "stop", self.version)

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        received = dict(tensors)
        assert received["bf16"].dtype == torch.bfloat16
        assert received["bf16"].shape == (2, 3)
        assert received["scalar"].shape == ()
        self.total = sum(float(tensor.float().sum()) for tensor in received.values())
        self.version = version

        self.asleep = False

    async def sleep(self) -> None:
        self.asleep = True

    def counters(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing to free."""


class Who(Echo):
    """Answers with its process, GPUs and node; can be asleep."""

    async def generate(self, request: GenerateRequest) -> Response:
        await super().generate(request)
        if self.asleep:
            raise EngineError("asleep")
        return Response((*map(int, ray.get_gpu_ids()), os.getpid()), (self.total,), "stop", self.version)


class Told(Echo):
    """Answers with the model runner that its environment asks vLLM for."""

    async def generate(self, request: GenerateRequest) -> Response:
        return Response((int(os.environ["VLLM_USE_V2_MODEL_RUNNER"]),), (0.0,), "stop", self.version)
