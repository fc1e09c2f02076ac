"""Host memory and time of a weight sync: what driver and object store hold while a fleet takes new weights.

    python benchmarks/sync_memory.py [--replicas 2] [--hidden 896] [--layers 26] [--syncs 2] [--bucket-mb 32]

Random parameters with the shapes of a Qwen2.5 (0.52 B by default) in bfloat16 go to replicas that keep a copy each, as
engines do. The target is the weights once in the store, however many replicas read them, and one bucket in the driver.
Several sizes of buckets take turns, `--syncs` times each. The first sync of all writes to new pages of the store, and
is slower than those that follow.
"""

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
import ray
import torch
from ray._private.internal_api import node_stats
from torch import Tensor

from arpo.inference import remote
from arpo.inference.engine import GenerateRequest, Response
from arpo.inference.fleet import FleetEngine

VOCABULARY = 151_936
MB = 2**20


def shapes(hidden: int, layers: int) -> dict[str, tuple[int, ...]]:
    """The language model's: tied output layer, MLP 5.4 times as wide, keys and values of a seventh."""
    mlp, keys = hidden * 4864 // 896, hidden // 7
    found: dict[str, tuple[int, ...]] = {"embed": (VOCABULARY, hidden)}
    for layer in range(layers):
        found |= {f"{layer}.{name}": (hidden, hidden) for name in ("q", "o")}
        found |= {f"{layer}.{name}": (keys, hidden) for name in ("k", "v")}
        found |= {f"{layer}.{name}": (mlp, hidden) for name in ("gate", "up")}
        found[f"{layer}.down"] = (hidden, mlp)
    return found


class Holder:
    """An engine that is nothing but its weights."""

    def __init__(self, numbers: dict[str, tuple[int, ...]]) -> None:
        self.weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in numbers.items()}
        self.version = 0

    async def generate(self, request: GenerateRequest) -> Response:
        total = sum(float(tensor.view(-1)[-1]) for tensor in self.weights.values())
        return Response((1,), (total,), "stop", self.version)

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        for name, tensor in tensors:
            self.weights[name].copy_(tensor)
        self.version = version

    def counters(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Nothing to free."""


class Peak:
    """The most that driver and object store held while the block ran, sampled all the time."""

    def __enter__(self) -> "Peak":
        self.driver = self.store = 0
        self._running = True
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running = False
        self._thread.join()

    def _sample(self) -> None:
        process = psutil.Process()
        (node,) = ray.nodes()
        address = node["NodeManagerAddress"], node["NodeManagerPort"]
        while self._running:
            memory = process.memory_info()
            self.driver = max(self.driver, memory.rss - memory.shared)  # the store's pages are counted as the store's
            self.store = max(self.store, node_stats(*address).store_stats.object_store_bytes_used)
            time.sleep(0.005)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {"replicas": 2, "hidden": 896, "layers": 26, "syncs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--bucket-mb", type=int, nargs="+", default=[remote.BUCKET_BYTES // MB])
    options = parser.parse_args()
    numbers = shapes(options.hidden, options.layers)
    model = {name: torch.full(shape, 0.5, dtype=torch.bfloat16) for name, shape in numbers.items()}
    largest = max(tensor.nbytes for tensor in model.values()) / MB
    whole = sum(tensor.nbytes for tensor in model.values()) / MB
    count = sum(tensor.numel() for tensor in model.values())
    print(f"{count / 1e9:.2f} B parameters, {whole:.0f} MB; the largest tensor is {largest:.0f} MB")
    fleet = FleetEngine(partial(Holder, numbers), replicas=options.replicas)
    with Peak() as before:
        time.sleep(0.2)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        yield from model.items()

    for version, bucket in enumerate(options.syncs * options.bucket_mb, start=1):
        remote.BUCKET_BYTES = bucket * MB
        started = time.monotonic()
        with Peak() as peak:
            asyncio.run(fleet.update_weights(tensors(), version))
        seconds = time.monotonic() - started
        replies = [asyncio.run(replica.generate(GenerateRequest((1,), (), None))) for replica in fleet.replicas]
        assert {reply.logprobs for reply in replies} == {(0.5 * len(model),)}
        print(
            f"sync {version} to {options.replicas} replicas by {bucket} MB: {seconds:.2f} s, "
            f"driver {peak.driver / MB:.0f} MB (+{(peak.driver - before.driver) / MB:.0f}), "
            f"object store {peak.store / MB:.0f} MB"
        )
    asyncio.run(fleet.close())


if __name__ == "__main__":
    main()
