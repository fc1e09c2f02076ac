"""A fleet of engines behind the protocol of one: replicas in Ray actors, each with GPUs of its own."""

import asyncio
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from arpo.errors import ConfigError, EngineError, EngineGoneError, check_at_least
from arpo.host.ray import RAY
from arpo.host.trial import before_start
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response
from arpo.inference.remote import Replica, shared_buckets
from arpo.inference.router import Router

log = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S = 60


class FleetEngine:
    """The engine protocol on replicas of an engine, each in a Ray actor; a fleet of one is an engine elsewhere.

    A conversation stays with its replica (`arpo.inference.router`). An update goes to all of them together: each
    bucket of weights is put into Ray's object store once, and every replica of a node reads it there.
    """

    def __init__(
        self,
        make_engine: Callable[[], InferenceEngine],
        *,
        replicas: int = 1,
        nodes: int = 1,
        num_gpus: float = 0,
        threads: int = 1,
    ) -> None:
        """Start the actors and, in them, the engines, side by side.

        Args:
            make_engine: Makes an engine in an actor's process; pickled by value.
            replicas: Number of engines on each node.
            nodes: Number of nodes of the Ray cluster that serve.
            num_gpus: Number of GPUs that Ray reserves for each engine and shows to it alone: 0 on a CPU, a share of
                one, or as many as the engine's tensor parallelism needs. Ray gives the first GPUs of a node.
            threads: Number of OpenMP threads of each actor's process.

        Raises:
            ConfigError: If a number is impossible, Ray has no such GPUs, or the engine refuses its own arguments.
            EngineError: If an engine cannot start.
        """
        check_at_least(1, replicas=replicas, nodes=nodes, threads=threads)
        check_at_least(0, num_gpus=num_gpus)
        node_gpus = replicas * num_gpus
        node_gpus = node_gpus if node_gpus <= 1 else math.ceil(node_gpus)  # Ray takes a share of one only
        if not os.environ.get("RAY_ADDRESS"):  # a cluster has GPUs and nodes that this machine has not
            _check_gpus(nodes, node_gpus, [torch.cuda.device_count()])
        before_start()
        RAY.acquire().result()
        with ExitStack() as on_failure:
            on_failure.callback(lambda: RAY.release().result())
            _check_gpus(nodes, node_gpus, [node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]])
            self._group = _reserve(nodes, node_gpus)
            if self._group is not None:
                on_failure.callback(remove_placement_group, self._group)
            self._replicas: list[Replica] = []
            for node in range(nodes):
                for _ in range(replicas):
                    replica = Replica(threads, _placement(self._group, node, num_gpus))
                    on_failure.callback(replica.kill)
                    self._replicas.append(replica)
            _run([replica.start(make_engine) for replica in self._replicas])
            on_failure.pop_all()
        self._router = Router(len(self._replicas))
        self._update: asyncio.Future[None] | None = None
        self._closed = False
        self._counters: Counter[str] = Counter()

    @property
    def replicas(self) -> Sequence[Replica]:
        """The replicas that have not died, to ask each of them alone."""
        return [self._replicas[number] for number in self._router.alive]

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`."""
        if self._closed:
            raise EngineGoneError("the engine is closed")
        arrived = time.monotonic()
        while self._update is not None:  # Ray keeps no order between calls of an async actor
            await asyncio.shield(self._update)
        number = self._router.take(request.conversation)
        with self._counted(number, time.monotonic() - arrived):
            return await self._replicas[number].generate(request)

    @contextmanager
    def _counted(self, number: int, waited_s: float) -> Iterator[None]:
        """Count a request at its replica, and send none there any more when it has died."""
        begun = time.monotonic()
        try:
            yield
        except EngineGoneError:
            self._router.remove(number)
            raise
        finally:
            self._router.give_back(number)
            place = f"engine/replica_{number}"
            self._counters[f"{place}/requests"] += 1
            self._counters[f"{place}/waiting_s"] += waited_s  # type: ignore[assignment]  # a Counter adds floats too
            self._counters[f"{place}/in_flight_s"] += time.monotonic() - begun  # type: ignore[assignment]

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `InferenceEngine.update_weights`; host memory holds one bucket of the weights on each node at a time.

        Raises:
            WeightSyncError: If an engine did not take the weights.
        """
        self._update = update = asyncio.get_running_loop().create_future()
        try:
            await self._send(tensors, version)
        finally:
            self._update = None
            update.set_result(None)

    async def _send(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        complete = False
        try:
            await self._tell(lambda replica: replica.begin_update(version))
            for bucket in shared_buckets(tensors):
                await self._tell(partial(Replica.feed, bucket=bucket))
                del bucket  # before the next one is put
            complete = True
        finally:
            if self._router.alive:
                await self._tell(lambda replica: replica.end_update(complete=complete))

    async def _tell(self, what: Callable[[Replica], Coroutine[Any, Any, None]]) -> None:
        """Tell all replicas something, then raise the first error; one that has died is left out from here on.

        Raises:
            EngineGoneError: If every replica is gone.
        """
        numbers = self._router.alive
        errors = await _errors(what(self._replicas[number]) for number in numbers)
        for number, error in zip(numbers, errors, strict=True):
            if isinstance(error, EngineGoneError):
                log.warning("engine %d of the fleet is gone: %s", number, error)
                self._router.remove(number)
            elif error is not None:
                raise error
        if not self._router.alive:
            why = f": {errors[-1]}" if errors else ""
            raise EngineGoneError(f"every replica of the fleet is gone{why}")

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`."""
        await self._tell(Replica.sleep)

    def counters(self) -> dict[str, float]:
        """Return requests, and seconds of requests in flight and before, waiting for an update, of each replica."""
        return dict(self._counters)

    async def close(self) -> None:
        """See `InferenceEngine.close`."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._tell(Replica.close)
        finally:
            for replica in self._replicas:
                replica.kill()
            if self._group is not None:
                remove_placement_group(self._group)
            await asyncio.wrap_future(RAY.release())


async def _errors(coroutines: Iterable[Coroutine[Any, Any, None]]) -> list[BaseException | None]:
    """Wait for all of them, and return the error of each: none is left behind in mid-update."""
    return await asyncio.gather(*coroutines, return_exceptions=True)


async def _all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all of them, then raise the first error."""
    for error in await _errors(coroutines):
        if error is not None:
            raise error


def _run(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines to their end, whether or not this thread has a loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(_all(coroutines))).result()


def _check_gpus(nodes: int, wanted: float, available: Sequence[float]) -> None:
    if wanted and sum(gpus >= wanted for gpus in available) < nodes:
        there = ", ".join(f"{gpus:g}" for gpus in available)
        raise ConfigError(
            f"the engines want {wanted:g} GPUs on {nodes} node(s), there are {there}; see CUDA_VISIBLE_DEVICES and "
            "RAY_ADDRESS, lower replicas or nodes, or set num_gpus=0 to run them on CPUs"
        )


def _reserve(nodes: int, node_gpus: float) -> PlacementGroup | None:
    """Return a hold on the GPUs of so many nodes, None where there is nothing to hold.

    Raises:
        EngineError: If somebody else keeps them.
    """
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


def _placement(group: PlacementGroup | None, node: int, num_gpus: float) -> dict[str, object]:
    if group is None:
        return {"scheduling_strategy": "SPREAD"}
    where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=node)
    return {"scheduling_strategy": where, "num_gpus": num_gpus}
