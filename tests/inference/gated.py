"""Fake engines for actors: some whose requests and updates wait for files, so that a test decides when they end."""

import asyncio
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor

from arpo.errors import EngineError, EngineGoneError, WeightSyncError
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.fleet import FleetEngine
from arpo.inference.remote import errors_of_ours

KILLS = 13
"""The prompt that ends the process."""
WEDGES = 14
"""The prompt after which the first engine that gets it takes no step any more, though its process answers."""
DIES = 15
"""The prompt after which the first engine that gets it is dead in a process that lives, as for want of memory."""


class Gated:
    """Answers with its process and the sum of its weights. The prompt (1, n) waits for the file `open_n`.

    It leaves a file for each thing that begins, and a line in `answers` for each request that it answers.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.total = 0.0
        self.version = 0
        self.steps = 0
        self.dead = self.wedged = False
        self.note("starts")
        while (directory / "hold_start").exists():
            time.sleep(0.002)
        if (directory / "no_more_starts").exists():
            raise EngineGoneError("scripted not to start")

    def note(self, event: str) -> None:
        with (self.directory / "events").open("a") as file:
            file.write(f"{time.monotonic()} {os.getpid()} {event}\n")

    async def generate(self, request: GenerateRequest) -> Response:
        what, *number = request.prompt_ids
        if what == KILLS:
            os._exit(1)
        self.dead = self.dead or (what == DIES and self.first("died"))
        if self.dead:
            raise EngineGoneError("the engine is dead: OutOfMemoryError")
        self.note(f"asked {request.sampling.seed}")
        if what == WEDGES and self.first("wedged"):
            self.wedged = True
            await asyncio.Event().wait()
        if number:
            await self.wait(f"open_{number[0]}", request.sampling.seed)
        self.steps += 1
        self.note(f"answered {request.sampling.seed} by {self.version}")
        return Response((os.getpid(),), (self.total,), "stop", self.version)

    def first(self, what: str) -> bool:
        """Whether it happens to this engine, and to none before."""
        first = not (self.directory / what).exists()
        (self.directory / what).touch()
        return first

    async def wait(self, name: str, seed: int) -> None:
        try:
            while not (self.directory / name).exists():
                self.steps += not self.wedged
                await asyncio.sleep(0.002)
                if self.dead:
                    raise EngineGoneError("the engine is closed")
        except asyncio.CancelledError:
            self.note(f"cancelled {seed}")
            raise

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.note(f"loads {version}")
        if (self.directory / "die_in_load").exists():
            (self.directory / "die_in_load").unlink()
            os._exit(1)
        while (self.directory / "hold_load").exists():
            await asyncio.sleep(0.002)
        self.total = sum(float(tensor.sum()) for _, tensor in tensors)
        if (self.directory / "refuse_load").exists():
            (self.directory / "refuse_load").unlink()
            raise WeightSyncError("scripted to hold other weights")
        self.version = version
        self.note(f"loaded {version}")

    async def sleep(self) -> None:
        self.note("sleeps")

    def counters(self) -> dict[str, float]:
        return {"engine/steps": float(self.steps), "engine/prompt_tokens": 4.0, "engine/cached_prompt_tokens": 3.0}

    async def close(self) -> None:
        self.dead = True
        await asyncio.sleep(0.2)  # an engine takes a while, in which its requests fail


def events(directory: Path, word: str = "") -> list[tuple[float, int, str]]:
    """Time, process and text of everything that began with this word."""
    lines = (directory / "events").read_text().splitlines() if (directory / "events").exists() else []
    parsed = [line.split(" ", 2) for line in lines]
    return [(float(at), int(pid), event) for at, pid, event in parsed if event.startswith(word)]


def ask(seed: int, *prompt: int, conversation: str = "") -> GenerateRequest:
    """A request that its seed names."""
    return GenerateRequest(prompt or (1,), (), Sampling(seed=seed), conversation)


def weights(value: float) -> Iterator[tuple[str, Tensor]]:
    yield "weight", torch.full((4,), value)


async def seen(directory: Path, word: str, count: int = 1, timeout_s: float = 60) -> list[tuple[float, int, str]]:
    """Wait until something has happened so often."""
    async with asyncio.timeout(timeout_s):
        while len(found := events(directory, word)) < count:
            await asyncio.sleep(0.005)
    return found


async def whole(fleet: FleetEngine, replicas: int = 2) -> None:
    """Wait until every replica serves."""
    async with asyncio.timeout(120):
        while len(fleet._router.open) < replicas:
            await asyncio.sleep(0.02)


async def ended(actor: Any) -> None:
    """Wait until the actor of a killed replica answers no more: its process may do so once."""
    with suppress(EngineGoneError), errors_of_ours():
        while True:
            await actor.pulse.remote()
            await asyncio.sleep(0.01)


async def missed(fleet: FleetEngine, actor: Any) -> None:
    """Wait until the fleet knows that the actor of a replica is gone."""
    async with asyncio.timeout(60):
        while actor in [replica.actor for replica in fleet.replicas]:
            await asyncio.sleep(0.02)


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


class AskedRunner(Echo):
    """Answers with the model runner that its environment asks vLLM for."""

    async def generate(self, request: GenerateRequest) -> Response:
        return Response((int(os.environ["VLLM_USE_V2_MODEL_RUNNER"]),), (0.0,), "stop", self.version)
