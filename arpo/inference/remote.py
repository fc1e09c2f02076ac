"""An engine in a process of its own, a Ray actor: for a trainer with DDP, and for engines with their own GPUs."""

import asyncio
import os
import queue
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from torch import Tensor

from arpo.errors import ArpoError, ConfigError, EngineError, WeightSyncError
from arpo.host.ray import MAX_CALLS_IN_FLIGHT, RAY, worker_environment
from arpo.host.trial import before_start
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response

BUCKET_BYTES = 32 * 2**20
BUCKETS_AHEAD = 2
"""Number of buckets that may wait in the actor, so that no second copy of the model exists on its way."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Packed:
    """A tensor as bytes, because numpy has no bfloat16; Ray shares the bytes between processes without a copy."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: "np.ndarray[Any, np.dtype[np.uint8]]"

    def unpack(self) -> Tensor:
        return torch.from_numpy(self.data).view(self.dtype).reshape(self.shape)


class RemoteEngine:
    """The engine protocol on an engine that a Ray actor hosts; weights go through Ray's object store in buckets."""

    def __init__(self, make_engine: Callable[[], InferenceEngine], *, num_gpus: float = 0, threads: int = 1) -> None:
        """Start the actor and, in it, the engine.

        Args:
            make_engine: Makes the engine in the actor's process; pickled by value.
            num_gpus: Number of GPUs that Ray reserves for the actor and shows to it alone.
            threads: Number of OpenMP threads of the actor's process.

        Raises:
            ConfigError: If a number is impossible, Ray has no such GPUs, or the engine refuses its own arguments.
            EngineError: If the engine cannot start.
        """
        if num_gpus < 0 or threads < 1:
            raise ConfigError(f"num_gpus must not be negative and threads at least 1, got {num_gpus} and {threads}")
        if not os.environ.get("RAY_ADDRESS"):  # a cluster has GPUs that this machine has not
            _check_gpus(num_gpus, torch.cuda.device_count())
        before_start()
        RAY.acquire().result()
        self._closed = False
        self._update: asyncio.Future[None] | None = None
        with ExitStack() as on_failure:
            on_failure.callback(lambda: RAY.release().result())
            _check_gpus(num_gpus, ray.cluster_resources().get("GPU", 0))
            environment = {**worker_environment(), "OMP_NUM_THREADS": str(threads)}
            host = ray.remote(_Host).options(
                num_cpus=0,
                num_gpus=num_gpus,
                max_concurrency=MAX_CALLS_IN_FLIGHT,
                runtime_env={"env_vars": environment},
            )
            self._actor = host.remote()
            on_failure.callback(ray.kill, self._actor)
            with _own_errors("the engine did not start in its Ray actor"):
                ray.get(self._actor.start.remote(make_engine))
            on_failure.pop_all()

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`."""
        while self._update is not None:  # Ray keeps no order between calls of an async actor
            await asyncio.shield(self._update)
        return await self._result(self._actor.generate.remote(request))

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `InferenceEngine.update_weights`.

        Raises:
            WeightSyncError: If the engine did not take the weights.
        """
        self._update = update = asyncio.get_running_loop().create_future()
        try:
            await self._send(tensors, version)
        finally:
            self._update = None
            update.set_result(None)

    async def _send(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        await self._result(self._actor.begin_update.remote(version))
        complete = False
        try:
            for bucket in _buckets(tensors):
                await self._result(self._actor.feed.remote(bucket))
            complete = True
        finally:
            await self._result(self._actor.end_update.remote(complete))

    async def close(self) -> None:
        """See `InferenceEngine.close`."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._result(self._actor.close.remote())
        finally:
            ray.kill(self._actor)
            await asyncio.wrap_future(RAY.release())

    async def _result(self, reference: Awaitable[Result]) -> Result:
        with _own_errors("the engine is closed" if self._closed else "the engine's actor failed"):
            return await reference


def _check_gpus(wanted: float, available: float) -> None:
    if available < wanted:
        raise ConfigError(
            f"the engine wants {wanted:g} GPUs, Ray has {available:g}; see CUDA_VISIBLE_DEVICES, or set num_gpus=0 to "
            "run it on CPUs"
        )


@contextmanager
def _own_errors(what: str) -> Iterator[None]:
    """Turn Ray's wrappers into the error of ours that they carry, or into an `EngineError`."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, ArpoError):
            raise error.cause from None
        raise EngineError(f"{what}: {error.cause}") from error
    except RayActorError as error:
        raise EngineError(f"{what}: {error}") from error


class _Host:
    """The actor: it hosts the engine. Ray starts calls in the order in which the trainer made them."""

    _engine: InferenceEngine

    def __init__(self) -> None:
        self._buckets: queue.SimpleQueue[list[_Packed] | bool] = queue.SimpleQueue()
        self._update: asyncio.Future[None] | None = None
        # What Ray shares is read-only, and loading only reads it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    async def start(self, make_engine: Callable[[], InferenceEngine]) -> None:
        self._engine = make_engine()

    async def generate(self, request: GenerateRequest) -> Response:
        return await self._engine.generate(request)

    async def begin_update(self, version: int) -> None:
        # On a loop of its own: an engine may read the tensors right there, and would block the loop that feeds them.
        work = asyncio.to_thread(lambda: asyncio.run(self._engine.update_weights(self._received(), version)))
        self._update = asyncio.ensure_future(work)

    async def feed(self, bucket: list[_Packed]) -> None:
        self._buckets.put(bucket)
        while self._buckets.qsize() > BUCKETS_AHEAD and self._update is not None and not self._update.done():
            await asyncio.sleep(0.001)

    async def end_update(self, complete: bool) -> None:
        self._buckets.put(complete)
        try:
            if self._update is not None:
                await self._update
        finally:
            self._buckets = queue.SimpleQueue()

    async def close(self) -> None:
        await self._engine.close()

    def _received(self) -> Iterator[tuple[str, Tensor]]:
        while not isinstance(bucket := self._buckets.get(), bool):
            for packed in bucket:
                yield packed.name, packed.unpack()
        if not bucket:
            raise WeightSyncError("the trainer stopped in the middle of sending its weights")


def _buckets(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[list[_Packed]]:
    """Yield tensors packed, some 32 MB at a time."""
    bucket: list[_Packed] = []
    size = 0
    for name, tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        bucket.append(_Packed(name, tensor.dtype, tuple(tensor.shape), data))
        size += data.nbytes
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    yield bucket
