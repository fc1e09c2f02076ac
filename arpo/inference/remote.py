"""The replicas of a fleet in Ray: the GPUs that are kept for them, their processes, and the weights they share."""

import asyncio
import itertools
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

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

BUCKET_BYTES = 32 * 2**20
"""A bucket is closed as soon as it holds this much; a larger tensor is a bucket of its own."""
PLACEMENT_TIMEOUT_S = 60
PULSE_S = 2.0
"""The most seconds between two looks at a replica."""
START_TIMEOUT_S = 1800
"""Seconds in which a restarted engine must have loaded its checkpoint; the first start is as long as it is."""
STEPS = "engine/steps"
"""The counter that grows while an engine works; one without it stands still only when its process does."""
_NUMBERS = itertools.count(1)


_Packed = tuple[str, torch.dtype, tuple[int, ...], "np.ndarray[Any, np.dtype[np.uint8]]"]
"""A tensor by name, format, shape and bytes, because numpy has no bfloat16; Ray shares the bytes without a copy."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One version of the weights in Ray's object store, which replicas read at their own time.

    The store holds the bytes once a node as long as the snapshot is held, and spills to disk beyond its memory. The
    trainer's own tensors may change as soon as the snapshot exists.
    """

    version: int
    shapes: Mapping[str, tuple[int, ...]]
    buckets: tuple[Any, ...]
    """References to lists of tensors, some 32 MB each."""
    number: int = field(default_factory=lambda: next(_NUMBERS))
    """Its place among all snapshots of this process, from 1; two may have one policy version."""

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]], version: int) -> "Snapshot":
        """Write tensors into the object store, a bucket at a time; in order, in the caller's thread.

        Raises:
            WeightSyncError: If the tensors break off, or the store has no room for them.
        """
        from arpo.models.placement import to_host

        shapes: dict[str, tuple[int, ...]] = {}
        buckets: list[Any] = []
        bucket: list[_Packed] = []
        size = 0
        try:
            for name, tensor in tensors:
                data = to_host(tensor.detach().contiguous()).reshape(-1).view(torch.uint8).numpy()
                bucket.append((name, tensor.dtype, tuple(tensor.shape), data))
                shapes[name] = tuple(tensor.shape)
                size += data.nbytes
                del tensor, data
                if size >= BUCKET_BYTES:
                    buckets.append(_put(bucket))
                    size = 0
            if bucket:
                buckets.append(_put(bucket))
        except Exception as error:
            buckets.clear()  # the error, which may be kept, keeps all local variables
            raise WeightSyncError(
                f"the weights broke off in the middle of their way into Ray's object store: {error}"
            ) from error
        return cls(version, shapes, tuple(buckets))

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, of which the caller sees Ray's own bytes: they are read-only."""
        for reference in self.buckets:
            bucket = ray.get(reference)
            while bucket:  # each tensor is let go once it was read
                name, dtype, shape, data = bucket.pop(0)
                yield name, torch.from_numpy(data).view(dtype).reshape(shape)


def _put(bucket: list[_Packed]) -> Any:
    reference = ray.put(list(bucket))
    bucket.clear()
    return reference


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
        """Return the engine's counters; a process that stands still does not answer."""
        return self._engine.counters()

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def close(self) -> None:
        """Close the engine; the actor stays until it is killed."""
        await self._engine.close()


def make_actor(threads: int, placement: Mapping[str, object], log: str | None) -> Any:
    """Return the handle of a new actor, whose process writes into the file `log`, or where Ray wants it."""
    host = ray.remote(_EngineActor).options(
        num_cpus=0,
        max_concurrency=MAX_CALLS_IN_FLIGHT,
        runtime_env={"env_vars": {**worker_environment(), "OMP_NUM_THREADS": str(threads)}},
        **placement,
    )
    return host.remote(log)


@contextmanager
def errors_of_ours(what: str = "the engine's actor failed") -> Iterator[None]:
    """Raise our error that Ray's wrappers carry, or one in their place: `EngineGoneError` where the actor has died."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, ArpoError):
            raise error.cause from None
        raise EngineError(f"{what}: {error.cause}") from error
    except RayActorError as error:
        raise EngineGoneError(f"{what}: {error}") from error


class Replica:
    """A numbered place of a fleet and the engine in it; another one comes when that one is gone."""

    def __init__(self, number: int, make_actor: Callable[[], Any]) -> None:
        self.number = number
        self.lock = asyncio.Lock()
        """Held while its weights change."""
        self.holds = 0
        """The number of the snapshot whose weights it has; 0: those it started with."""
        self.gone = False
        """Whether the actor is gone and no other one runs yet."""
        self.given_up = False
        self.failures = 0
        """Actors in a row that were lost without an answer."""
        self.counters: Counter[str] = Counter(requests=0, tokens=0, waiting_s=0, in_flight_s=0)
        """Sums over all actors that were here, without the engine's own."""
        self._make_actor = make_actor
        self.actor = make_actor()
        self._calls: set[asyncio.Task[Response]] = set()
        self._loads = 0
        self._metrics: dict[str, float] = {}
        self._metrics_before: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for the engine's answer."""
        return len(self._calls)

    async def ask(self, request: GenerateRequest, waited_s: float = 0.0) -> Response | None:
        """Return the response; None if the request was called back before it was answered.

        Raises:
            EngineGoneError: If the engine's process has died.
            EngineError: If it refused the request.
        """
        begun = time.monotonic()
        call = asyncio.create_task(self._generate(request))
        self._calls.add(call)
        try:
            await asyncio.wait([call])
        finally:
            self._calls.discard(call)
            call.cancel()  # in the engine too, where our own caller has gone
            self.counters.update(waiting_s=waited_s, in_flight_s=time.monotonic() - begun)  # type: ignore[call-overload]
        if call.cancelled():
            return None
        response = call.result()
        self.failures = 0
        self.counters.update(requests=1, tokens=len(response.token_ids))
        return response

    async def _generate(self, request: GenerateRequest) -> Response:
        reference = self.actor.generate.remote(request)
        try:
            with errors_of_ours():
                response: Response = await reference
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        return response

    async def drain(self, deadline_s: float) -> None:
        """Wait until every request is answered, and past the deadline call back those that are not."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=deadline_s)
        self._call_back()

    def _call_back(self) -> None:
        """Cancel the requests that are not answered yet: `ask` returns None."""
        for call in self._calls:
            call.cancel()

    async def load(self, snapshot: Snapshot) -> None:
        """Load weights into the engine.

        Raises:
            WeightSyncError: If they are not the model's, or it holds other ones afterwards.
            EngineGoneError: If it has died.
        """
        self._loads += 1  # for which the watch expects steps
        try:
            with errors_of_ours():
                await self.actor.load.remote(snapshot)
        finally:
            self._loads -= 1

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`."""
        with errors_of_ours():
            await self.actor.sleep.remote()

    def kill(self) -> None:
        """End the process that is there now, be it stopped or not; idempotent."""
        ray.kill(self.actor)

    def lose(self) -> None:
        """End the process, and cancel its requests."""
        self.gone = True
        self.failures += 1
        self._call_back()
        self.kill()
        self._metrics_before.update(self._metrics)
        self._metrics = {}

    async def restart(self, make_engine: Callable[[], InferenceEngine]) -> str:
        """Start an engine in the place of the one that is gone, and return the reason if it is gone too."""
        self.actor = self._make_actor()
        self.holds = 0
        try:
            with errors_of_ours():
                async with asyncio.timeout(START_TIMEOUT_S):
                    await self.actor.start.remote(make_engine)
        except (ArpoError, TimeoutError) as error:
            self.lose()
            return f"it did not start: {error or f'not within {START_TIMEOUT_S} s'}"
        self.gone = False
        return ""

    async def close(self) -> None:
        """Close the engine, if it lives, and have nothing started in its place."""
        if not self.gone:
            self.gone = True
            with suppress(EngineGoneError), errors_of_ours():  # it has died, and nothing is left to close
                await self.actor.close.remote()

    async def watch(self, stall_s: float) -> str:
        """Return the reason for which the engine is gone, as soon as it is: it died, or stood still for `stall_s`."""
        actor, steps, moved = self.actor, -1.0, time.monotonic()
        while True:
            try:
                metrics = await _pulse(actor, stall_s)
            except TimeoutError:
                return f"its process has not answered for {stall_s:g} s"
            except EngineError as error:
                return str(error)
            if self.gone or self.actor is not actor:
                return "it was lost already"
            self._metrics = metrics
            now = time.monotonic()
            taken = metrics.get(STEPS, now)
            if taken != steps or not (self._calls or self._loads):
                steps, moved = taken, now
            elif now - moved >= stall_s:
                return f"its engine has not taken a step for {stall_s:g} s, though it has work"
            await asyncio.sleep(min(PULSE_S, stall_s / 4))

    def metrics(self) -> dict[str, float]:
        """Return all counters under the replica's number."""
        place = f"engine/replica_{self.number}"
        found = Counter({f"{place}/{name}": value for name, value in self.counters.items()})
        for metrics in (self._metrics_before, self._metrics):
            found.update({name.replace("engine", place, 1): value for name, value in metrics.items()})
        return dict(found)


async def _pulse(actor: Any, stall_s: float) -> dict[str, float]:
    """Return an engine's counters, or raise an `EngineError` where its actor has died."""
    answer = asyncio.ensure_future(actor.pulse.remote())
    try:
        for _ in range(2):  # two halves: where it was this loop that stood still, it hears the answer in the second
            await asyncio.wait([answer], timeout=stall_s / 2)
        if not answer.done():
            raise TimeoutError
        with errors_of_ours():
            metrics: dict[str, float] = answer.result()
        return metrics
    finally:
        answer.cancel()


def gpus_of_node(replicas: int, num_gpus: float) -> float:
    """Return the number of GPUs that the replicas of a node need; above one it is whole, as Ray wants it."""
    gpus = replicas * num_gpus
    return gpus if gpus <= 1 else math.ceil(gpus)


def check_gpus(nodes: int, wanted: float, available: Sequence[float]) -> None:
    """Check that there are so many nodes with so many GPUs."""
    if wanted and sum(gpus >= wanted for gpus in available) < nodes:
        there = ", ".join(f"{gpus:g}" for gpus in available)
        raise ConfigError(
            f"the engines want {wanted:g} GPUs on {nodes} node(s), there are {there}; see CUDA_VISIBLE_DEVICES and "
            "RAY_ADDRESS, lower replicas or nodes, or set num_gpus=0 where there are only CPUs"
        )


def reserve(nodes: int, node_gpus: float) -> PlacementGroup | None:
    """Return a hold on the GPUs of so many nodes, None where there is nothing to hold."""
    check_gpus(nodes, node_gpus, [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]])
    if not node_gpus:
        return None
    group = placement_group([{"GPU": node_gpus}] * nodes, strategy="STRICT_SPREAD")
    if not group.wait(PLACEMENT_TIMEOUT_S):
        remove_placement_group(group)
        raise EngineError(
            f"{node_gpus:g} GPUs on each of {nodes} node(s) were not free within {PLACEMENT_TIMEOUT_S} s: end the "
            "other jobs of this Ray cluster (`ray status` lists them)"
        )
    return group


def placement(group: PlacementGroup | None, node: int, num_gpus: float) -> dict[str, object]:
    """Return the options of Ray's by which an actor gets its GPUs on a node."""
    if group is None:
        return {"scheduling_strategy": "SPREAD"}
    where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=node)
    return {"scheduling_strategy": where, "num_gpus": num_gpus}
