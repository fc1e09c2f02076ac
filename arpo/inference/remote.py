"""One replica of a fleet: an engine in a process of its own, a Ray actor, and the trainer's handle of it."""

import asyncio
import queue
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from torch import Tensor

from arpo.errors import ArpoError, EngineError, EngineGoneError, WeightSyncError
from arpo.host.ray import MAX_CALLS_IN_FLIGHT, worker_environment
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response

BUCKET_BYTES = 32 * 2**20
"""A bucket is closed as soon as it holds this much; a larger tensor is a bucket of its own."""

Result = TypeVar("Result")


class Replica:
    """The handle of an engine in an actor; every method but `kill` is a coroutine.

    Weights come as `begin_update`, one `feed` a bucket, `end_update`: the fleet puts a bucket into Ray's object store
    once, and every replica of a node reads it there.
    """

    def __init__(self, threads: int, placement: Mapping[str, object]) -> None:
        """Start the actor; `start` starts the engine in it.

        Args:
            threads: Number of OpenMP threads of its process.
            placement: Options of Ray's that say where it runs, and with which GPUs.
        """
        host = ray.remote(_Host).options(
            num_cpus=0,
            max_concurrency=MAX_CALLS_IN_FLIGHT,
            runtime_env={"env_vars": {**worker_environment(), "OMP_NUM_THREADS": str(threads)}},
            **placement,
        )
        self._actor = host.remote()

    async def start(self, make_engine: Callable[[], InferenceEngine]) -> None:
        """Start the engine.

        Raises:
            ConfigError: If the engine refuses its arguments.
            EngineError: If it does not start.
        """
        await _result(self._actor.start.remote(make_engine), "the engine did not start in its Ray actor")

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`.

        Raises:
            EngineGoneError: If the process has died.
        """
        return await _result(self._actor.generate.remote(request))

    async def begin_update(self, version: int) -> None:
        """Let the engine begin an update, whose tensors follow; it waits for the requests in flight."""
        await _result(self._actor.begin_update.remote(version))

    async def feed(self, bucket: object) -> None:
        """Hand a bucket over by its reference in the object store; returns when the engine has read it."""
        await _result(self._actor.feed.remote(bucket))

    async def end_update(self, *, complete: bool) -> None:
        """End the update and raise what went wrong; one that is not complete fails."""
        await _result(self._actor.end_update.remote(complete))

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`."""
        await _result(self._actor.sleep.remote())

    async def close(self) -> None:
        """Close the engine; the actor stays until `kill`."""
        await _result(self._actor.close.remote())

    def kill(self) -> None:
        """End the actor's process; idempotent."""
        ray.kill(self._actor)


async def _result(reference: Awaitable[Result], what: str = "the engine's actor failed") -> Result:
    """Return what a call gives; turn Ray's wrappers into the error of ours that they carry, or into one of ours."""
    try:
        return await reference
    except RayTaskError as error:
        if isinstance(error.cause, ArpoError):
            raise error.cause from None
        raise EngineError(f"{what}: {error.cause}") from error
    except RayActorError as error:
        raise EngineGoneError(f"{what}: {error}") from error


class _Host:
    """The actor: it hosts the engine. Ray starts calls in the order in which the trainer made them."""

    _engine: InferenceEngine

    def __init__(self) -> None:
        self._buckets: queue.Queue[list[_Packed] | bool] = queue.Queue()
        self._update: asyncio.Future[None] | None = None
        # What Ray shares is read-only, and loading only reads it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    async def start(self, make_engine: Callable[[], InferenceEngine]) -> None:
        try:
            self._engine = make_engine()
        except ArpoError:
            raise
        except Exception as error:  # noqa: BLE001 - of a library's own kind, which Ray may be unable to send
            raise EngineError(f"the engine did not start in its Ray actor: {type(error).__name__}: {error}") from None

    async def generate(self, request: GenerateRequest) -> Response:
        return await self._engine.generate(request)

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def begin_update(self, version: int) -> None:
        # On a loop of its own: an engine may read the tensors right there, and would block the loop that feeds them.
        work = asyncio.to_thread(lambda: asyncio.run(self._engine.update_weights(self._received(), version)))
        self._update = asyncio.ensure_future(work)

    async def feed(self, bucket: "list[_Packed]") -> None:
        self._buckets.put(bucket)
        while self._buckets.unfinished_tasks and self._update is not None and not self._update.done():
            await asyncio.sleep(0.001)

    async def end_update(self, complete: bool) -> None:
        self._buckets.put(complete)
        try:
            if self._update is not None:
                await self._update
        finally:
            self._buckets = queue.Queue()

    async def close(self) -> None:
        await self._engine.close()

    def _received(self) -> Iterator[tuple[str, Tensor]]:
        while not isinstance(bucket := self._buckets.get(), bool):
            while bucket:  # what was read is let go: Ray frees a bucket when nobody looks at it
                packed = bucket.pop(0)
                yield packed.name, packed.unpack()
            del packed
            self._buckets.task_done()
        if not bucket:
            raise WeightSyncError("the trainer stopped in the middle of sending its weights")


@dataclass(frozen=True, slots=True)
class _Packed:
    """A tensor as bytes, because numpy has no bfloat16; Ray shares the bytes between processes without a copy."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: "np.ndarray[Any, np.dtype[np.uint8]]"

    def unpack(self) -> Tensor:
        return torch.from_numpy(self.data).view(self.dtype).reshape(self.shape)


def shared_buckets(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[Any]:
    """Yield references to tensors in Ray's object store, some 32 MB each; read once, in order, in the caller's thread.

    Only one bucket exists at a time if the caller drops each reference before it asks for the next one.
    """
    bucket: list[_Packed] = []
    size = 0
    for name, tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        bucket.append(_Packed(name, tensor.dtype, tuple(tensor.shape), data))
        size += data.nbytes
        del tensor, data
        if size >= BUCKET_BYTES:
            yield _put(bucket)
            size = 0
    if bucket:
        yield _put(bucket)


def _put(bucket: list[_Packed]) -> Any:
    """Copy a bucket into the object store of this node, and let go of the original."""
    reference = ray.put(bucket)
    bucket.clear()
    return reference
