"""The replicas of a fleet in Ray: the GPUs that are kept for them, their processes, and the weights they share."""

import asyncio
import math
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from arpo.errors import ArpoError, ConfigError, EngineError, EngineGoneError, WeightSyncError
from arpo.host.ray import MAX_CALLS_IN_FLIGHT, worker_environment
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response
from arpo.models.transfer import to_host

BUCKET_BYTES = 32 * 2**20
"""A bucket is closed as soon as it holds this much; a larger tensor is a bucket of its own."""

PLACEMENT_TIMEOUT_S = 60

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


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One version of the weights in Ray's object store, which replicas read whenever it suits them.

    The store holds the bytes once a node, however many replicas read them there, until nobody holds the snapshot. It
    writes to disk what exceeds its memory. The trainer's own tensors may change as soon as the snapshot exists.
    """

    version: int
    shapes: Mapping[str, tuple[int, ...]]
    """Of every tensor, by name."""
    buckets: tuple[Any, ...]
    """References to lists of tensors, some 32 MB each."""

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]], version: int) -> "Snapshot":
        """Write tensors into the object store, a bucket at a time; in order, in the caller's thread.

        Raises:
            WeightSyncError: If the tensors break off, or the store has no room for them.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        buckets: list[Any] = []
        bucket: list[_Packed] = []
        size = 0
        try:
            for name, tensor in tensors:
                data = to_host(tensor.detach().contiguous()).reshape(-1).view(torch.uint8).numpy()
                bucket.append(_Packed(name, tensor.dtype, tuple(tensor.shape), data))
                shapes[name] = tuple(tensor.shape)
                size += data.nbytes
                del tensor, data
                if size >= BUCKET_BYTES:
                    buckets.append(_put(bucket))
                    size = 0
            if bucket:
                buckets.append(_put(bucket))
        except Exception as error:
            buckets.clear()  # the error, which may be kept, keeps whatever stands here
            raise WeightSyncError(
                f"the weights broke off in the middle of their way into Ray's object store: {error}"
            ) from error
        return cls(version, shapes, tuple(buckets))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, of which the caller sees Ray's own bytes: they are read-only."""
        for reference in self.buckets:
            bucket = ray.get(reference)
            while bucket:  # what was read is let go
                packed = bucket.pop(0)
                yield packed.name, packed.unpack()


def _put(bucket: list[_Packed]) -> Any:
    """Copy a bucket into the object store of this node, and let go of the original."""
    reference = ray.put(list(bucket))
    bucket.clear()
    return reference


class Replica:
    """The handle of an engine in an actor; every method but `kill` is a coroutine."""

    def __init__(self, threads: int, placement: Mapping[str, object], log: str | None = None) -> None:
        """Start the actor; `start` starts the engine in it.

        Args:
            threads: Number of OpenMP threads of its process.
            placement: Options of Ray's that say where it runs, and with which GPUs.
            log: File to which its process writes from then on; None leaves that to Ray.
        """
        host = ray.remote(_EngineActor).options(
            num_cpus=0,
            max_concurrency=MAX_CALLS_IN_FLIGHT,
            runtime_env={"env_vars": {**worker_environment(), "OMP_NUM_THREADS": str(threads)}},
            **placement,
        )
        self._actor = host.remote(log)

    async def start(self, make_engine: Callable[[], InferenceEngine]) -> None:
        """Start the engine.

        Raises:
            ConfigError: If the engine refuses its arguments.
            EngineError: If it does not start.
        """
        await _result(self._actor.start.remote(make_engine), "the engine did not start in its Ray actor")

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`; a caller that is cancelled cancels the request in the engine too.

        Raises:
            EngineGoneError: If the process has died.
        """
        reference = self._actor.generate.remote(request)
        try:
            return await _result(reference)
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise

    async def load(self, snapshot: Snapshot) -> None:
        """Let the engine adopt a snapshot; it answers the requests in flight first."""
        await _result(self._actor.load.remote(snapshot))

    async def pulse(self) -> dict[str, float]:
        """Return the engine's counters; a process that stands still does not answer."""
        return await _result(self._actor.pulse.remote())

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`."""
        await _result(self._actor.sleep.remote())

    async def close(self) -> None:
        """Close the engine; the actor stays until `kill`."""
        await _result(self._actor.close.remote())

    def kill(self) -> None:
        """End the actor's process, be it stopped or not; idempotent."""
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


class _EngineActor:
    """The actor: it hosts the engine. Ray starts calls in the order in which the trainer made them."""

    _engine: InferenceEngine

    def __init__(self, log: str | None) -> None:
        if log is not None:
            with suppress(OSError), open(log, "ab") as file:  # on another node the folder may not be there
                os.dup2(file.fileno(), sys.stdout.fileno())
                os.dup2(file.fileno(), sys.stderr.fileno())
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

    async def load(self, snapshot: Snapshot) -> None:
        # On a loop of its own: an engine may read the tensors right there, and would block the one that answers.
        await asyncio.to_thread(lambda: asyncio.run(self._engine.update_weights(snapshot, snapshot.version)))

    async def pulse(self) -> dict[str, float]:
        return self._engine.counters()

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def close(self) -> None:
        await self._engine.close()


def gpus_of_node(replicas: int, num_gpus: float) -> float:
    """Return how many GPUs the replicas of a node need; above one it is whole ones, as Ray wants it."""
    together = replicas * num_gpus
    return together if together <= 1 else math.ceil(together)


def check_gpus(nodes: int, wanted: float, available: Sequence[float]) -> None:
    """Check that there are so many nodes with so many GPUs.

    Raises:
        ConfigError: If there are not.
    """
    if wanted and sum(gpus >= wanted for gpus in available) < nodes:
        there = ", ".join(f"{gpus:g}" for gpus in available)
        raise ConfigError(
            f"the engines want {wanted:g} GPUs on {nodes} node(s), there are {there}; see CUDA_VISIBLE_DEVICES and "
            "RAY_ADDRESS, lower replicas or nodes, or set num_gpus=0 where there are only CPUs"
        )


def reserve(nodes: int, node_gpus: float) -> PlacementGroup | None:
    """Return a hold on the GPUs of so many nodes, None where there is nothing to hold.

    Raises:
        ConfigError: If Ray has no such GPUs.
        EngineError: If somebody else keeps them.
    """
    check_gpus(nodes, node_gpus, [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]])
    if not node_gpus:
        return None
    group = placement_group([{"GPU": node_gpus}] * nodes, strategy="STRICT_SPREAD")
    if not group.wait(PLACEMENT_TIMEOUT_S):
        remove_placement_group(group)
        raise EngineError(
            f"{node_gpus:g} GPUs on each of {nodes} node(s) were not free within {PLACEMENT_TIMEOUT_S} s: end the "
            "other jobs of this Ray cluster (`ray status` shows who holds what)"
        )
    return group


def placement(group: PlacementGroup | None, node: int, num_gpus: float) -> dict[str, object]:
    """Return the options of Ray's by which an actor gets its GPUs on a node."""
    if group is None:
        return {"scheduling_strategy": "SPREAD"}
    where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=node)
    return {"scheduling_strategy": where, "num_gpus": num_gpus}
