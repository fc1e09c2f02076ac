"""A sync in place beside restarting an engine from a new checkpoint, in one run, and the time in which nobody serves.

    python benchmarks/sync_in_place.py [--replicas 2] [--syncs 5]

Replicas of vLLM with a tiny model answer conversations with screenshots all the time. First the weights change in
place by a rolling sync, several times; then by the way of systems without one: the checkpoint is written, an engine is
ended, and another one starts from it. The bubble is the time in which no replica takes requests.
"""

import argparse
import asyncio
import io
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from PIL import Image

from arpo.inference.engine import GenerateRequest, Sampling
from arpo.inference.fleet import FleetEngine
from arpo.inference.vllm import VllmEngine
from arpo.models.families.qwen2_5_vl import make_tiny
from arpo.models.policy import Policy

OPTIONS = {"max_model_len": 512, "max_num_seqs": 8, "max_images": 2, "kv_cache_gb": 0.0625}


class Bubble:
    """The seconds in which no replica of a fleet takes requests, looked at all the time."""

    def __init__(self, fleet: FleetEngine) -> None:
        self.seconds = 0.0
        self._fleet = fleet
        self._running = True

    async def watch(self) -> None:
        before = time.monotonic()
        while self._running:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            self.seconds += (now - before) * (not self._fleet._router.open)
            before = now

    def stop(self) -> None:
        self._running = False


async def talk(fleet: FleetEngine, requests: list[GenerateRequest], until: asyncio.Event) -> int:
    """Ask one request after the other; returns how many were answered."""
    answered = 0
    while not until.is_set():
        await fleet.generate(requests[answered % len(requests)])
        answered += 1
    return answered


async def in_place(fleet: FleetEngine, policy: Policy, syncs: int, requests: list[GenerateRequest]) -> None:
    until, bubble = asyncio.Event(), Bubble(fleet)
    watching = asyncio.create_task(bubble.watch())
    talks = [asyncio.create_task(talk(fleet, requests[number:], until)) for number in range(4)]
    for version in range(1, syncs + 1):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        started = time.monotonic()
        await fleet.update_weights(policy.checkpoint_tensors(), version)
        trainer = time.monotonic() - started
        await fleet.settle()
        whole = time.monotonic() - started
        print(f"sync {version}: the trainer waited {trainer:.2f} s, every replica served after {whole:.2f} s")
    until.set()
    answered = sum(await asyncio.gather(*talks))
    bubble.stop()
    await watching
    print(f"{answered} requests were answered meanwhile; nobody served for {bubble.seconds:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--syncs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "first"
        make_tiny(path, corpus=["Click on the blue button.", "Action: click(start_box='(1,2)')"] * 8)
        policy = Policy(path)
        content = [{"type": "image"}, {"type": "text", "text": "Click."}]
        ids = policy.chat.first_prompt([{"role": "user", "content": content}])
        buffer = io.BytesIO()
        Image.new("RGB", (112, 112), "navy").save(buffer, "PNG")
        png = buffer.getvalue()
        requests = [GenerateRequest(ids, (png,), Sampling(max_tokens=32, seed=seed)) for seed in range(16)]
        loop = asyncio.Runner()  # of all that a fleet does
        fleet = FleetEngine(partial(VllmEngine, path, **OPTIONS), replicas=options.replicas, sync="rolling")
        loop.run(in_place(fleet, policy, options.syncs, requests))
        for number in range(2):
            started = time.monotonic()
            loop.run(fleet.update_weights(policy.checkpoint_tensors(), 100 + number))
            loop.run(fleet.settle())
            print(f"idle sync of {options.replicas} replicas: {time.monotonic() - started:.2f} s")
        loop.run(fleet.close())
        started = time.monotonic()
        policy.save(Path(directory) / "second")
        written = time.monotonic() - started
        again = FleetEngine(partial(VllmEngine, Path(directory) / "second", **OPTIONS))
        loop.run(again.generate(requests[0]))
        restart = time.monotonic() - started
        print(f"one replica from a new checkpoint: {restart:.1f} s, {written:.1f} s of it to write it")
        loop.run(again.close())


if __name__ == "__main__":
    main()
