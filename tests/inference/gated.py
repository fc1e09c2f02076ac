"""Fake engines for actors: some whose requests and updates wait for files, so that a test decides when they end."""

import asyncio
import os
import sys
import time
from contextlib import suppress
from threading import Lock

import ray
import torch

from arpo.errors import EngineError, EngineGoneError, WeightSyncError
from arpo.inference.engine import GenerateRequest, Response, Sampling
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

    def __init__(self, directory):
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

    def note(self, event):
        with (self.directory / "events").open("a") as file:
            file.write(f"{time.monotonic()} {os.getpid()} {event}\n")

    async def generate(self, request):
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

    def first(self, what):
        """Whether it happens to this engine, and to none before."""
        first = not (self.directory / what).exists()
        (self.directory / what).touch()
        return first

    async def wait(self, name, seed):
        try:
            while not (self.directory / name).exists():
                self.steps += not self.wedged
                await asyncio.sleep(0.002)
                if self.dead:
                    raise EngineGoneError("the engine is closed")
        except asyncio.CancelledError:
            self.note(f"cancelled {seed}")
            raise

    async def update_weights(self, tensors, version):
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

    async def weights(self):
        return {}

    async def sleep(self):
        self.note("sleeps")

    def counters(self):
        return {"engine/steps": float(self.steps), "engine/prompt_tokens": 4.0, "engine/cached_prompt_tokens": 3.0}

    async def close(self):
        self.dead = True
        await asyncio.sleep(0.2)  # an engine takes a while, in which its requests fail


def events(directory, word=""):
    """Time, process and text of everything that began with this word."""
    lines = (directory / "events").read_text().splitlines() if (directory / "events").exists() else []
    parsed = [line.split(" ", 2) for line in lines]
    return [(float(at), int(pid), event) for at, pid, event in parsed if event.startswith(word)]


def ask(seed, *prompt, conversation=""):
    return GenerateRequest(prompt or (1,), (), Sampling(seed=seed), conversation)


def weights(value):
    yield "weight", torch.full((4,), value)


async def until(condition, timeout_s=120):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def seen(directory, word, count=1):
    """Wait until something has happened so often."""
    await until(lambda: len(events(directory, word)) >= count, 60)
    return events(directory, word)


async def asked(fleet, directory, seed=1, conversation="a"):
    """A request that waits in a replica for the file `open_7`, and the replica's process."""
    request = asyncio.create_task(fleet.generate(ask(seed, 1, 7, conversation=conversation)))
    return request, (await seen(directory, f"asked {seed}"))[0][1]


async def whole(fleet, replicas=2):
    """Wait until every replica serves."""
    await until(lambda: len(fleet._router.open) >= replicas)


async def ended(actor):
    """Wait until the actor of a killed replica answers no more: its process may do so once."""
    with suppress(EngineGoneError), errors_of_ours():
        while True:
            await actor.pulse.remote()
            await asyncio.sleep(0.01)


async def missed(fleet, actor):
    """Wait until the fleet knows that the actor of a replica is gone."""
    await until(lambda: actor not in [replica.actor for replica in fleet.replicas], 60)


class Echo:
    def __init__(self):
        sys.stderr.write("ready\n")
        self.total = 0.0
        self.version = 0
        self.asleep = False

    async def generate(self, request):
        return Response((1,), (self.total,), "stop", self.version)

    async def update_weights(self, tensors, version):
        received = dict(tensors)
        assert received["bf16"].dtype == torch.bfloat16
        assert received["bf16"].shape == (2, 3)
        assert received["scalar"].shape == ()
        self.total = sum(float(tensor.float().sum()) for tensor in received.values())
        self.version = version

        self.asleep = False

    async def weights(self):
        return {}

    async def sleep(self):
        self.asleep = True

    def counters(self):
        return {}

    async def close(self):
        """Nothing to free."""


class Who(Echo):
    """Answers with its process, GPUs and node; can be asleep."""

    async def generate(self, request):
        await super().generate(request)
        if self.asleep:
            raise EngineError("asleep")
        return Response((*map(int, ray.get_gpu_ids()), os.getpid()), (self.total,), "stop", self.version)


def no_engine():
    error = RuntimeError("unknown quantization fp0")
    error.args += (Lock(),)  # which cannot be sent to another process
    raise error


class AskedRunner(Echo):
    """Answers with the model runner that its environment asks vLLM for."""

    async def generate(self, request):
        return Response((int(os.environ["VLLM_USE_V2_MODEL_RUNNER"]),), (0.0,), "stop", self.version)
