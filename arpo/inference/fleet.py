"""A fleet of engines behind the protocol of one: replicas in Ray actors, each with GPUs of its own."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import ray
import torch
from ray.util.placement_group import remove_placement_group
from torch import Tensor

from arpo.bounds import AtLeastOne, NotNegative, NotNegativeInt, Positive, checked
from arpo.errors import ArpoError, EngineError, EngineGoneError, WeightSyncError
from arpo.host.environment import cluster_address
from arpo.host.ray import RAY
from arpo.host.threads import Signal
from arpo.host.trial import before_start
from arpo.inference import remote
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response
from arpo.inference.remote import Replica, Snapshot
from arpo.inference.router import Router

log = logging.getLogger(__name__)

MOST_LOSSES = 3
"""Replicas that one request may see die before it is refused: it may be what kills them."""

Sync = Literal["global", "rolling"]


@checked
class FleetEngine:
    """The engine protocol on replicas of an engine, each in a Ray actor; a fleet of one is an engine elsewhere.

    A conversation stays with its replica (`Router`). New weights are written once (`Snapshot`). Then each replica
    stops taking requests, answers those it has (past `drain_s` they are asked again elsewhere, with the same seed),
    loads in place, compares checksums, forgets its caches, and takes requests again. With `sync="global"` all replicas
    do so at once, while requests and the trainer wait; with `rolling` at most `max_unavailable` at a time, and the
    trainer goes on as soon as one serves them. If one holds other weights, every later call raises its error.

    A replica that dies, or stands still for `stall_s`, loses its requests to the others. It is started again, gets the
    current weights, and takes requests then. While no replica is there, requests wait. Updates do not wait for one
    that is being started again, for it may be on a node that is gone.

    A fleet lives on the event loop of its first call, and all later ones come from there.
    """

    def __init__(  # noqa: PLR0913 - one argument a line of the configuration
        self,
        make_engine: Callable[[], InferenceEngine],
        *,
        replicas: AtLeastOne = 1,
        nodes: AtLeastOne = 1,
        num_gpus: NotNegative = 0,
        threads: AtLeastOne = 1,
        sync: Sync = "global",
        max_unavailable: AtLeastOne = 1,
        drain_s: NotNegative = 30.0,
        stall_s: Positive = 120.0,
        max_restarts: NotNegativeInt = 3,
        log: str | None = None,
    ) -> None:
        """Start the actors and, in them, the engines.

        Args:
            make_engine: Makes an engine in an actor's process; pickled by value.
            replicas: Engines on each node.
            nodes: Nodes of the Ray cluster that serve.
            num_gpus: GPUs that Ray reserves for each engine and shows to it alone: 0 on a CPU, a share of one, or as
                many as the engine's tensor parallelism needs. Ray gives the first GPUs of a node.
            threads: OpenMP threads of each actor's process.
            sync: Whether all replicas take new weights at once (`global`), or one after the other (`rolling`).
            max_unavailable: Replicas that may be out for their update at the same time; of `rolling` alone.
            drain_s: Seconds in which a replica answers its requests before an update; 0: they move at once.
            stall_s: Seconds without a sign of life after which a replica counts as gone.
            max_restarts: Times in a row that a replica is started again without having answered a request.
            log: File for the output of the engines' processes; None leaves it among Ray's files, which go with the
                run.
        """
        node_gpus = remote.gpus_of_node(replicas, num_gpus)
        if not cluster_address():  # a cluster has GPUs and nodes that this machine has not
            remote.check_gpus(nodes, node_gpus, [torch.cuda.device_count()])
        before_start()
        self._make_engine = make_engine
        self._rolling = sync == "rolling"
        self._most_out = max_unavailable if self._rolling else replicas * nodes
        self._drain_s, self._stall_s, self._max_restarts = drain_s, stall_s, max_restarts
        self._router = Router(replicas * nodes)
        self._counters = Counter({"engine/moved_requests": 0, "engine/restarts": 0})
        self._update: Snapshot | None = None
        self._roll: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._paused = self._writing = self._asleep = self._watched = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = Signal()
        self._replicas: list[Replica] = []
        self._closing = asyncio.Lock()
        RAY.acquire().result()
        with ExitStack() as held:
            held.callback(lambda: RAY.release().result())
            group = remote.reserve(nodes, node_gpus)
            if group is not None:
                held.callback(remove_placement_group, group)
            for number in range(replicas * nodes):
                where = remote.placement(group, number // replicas, num_gpus)
                self._replicas.append(Replica(number, partial(remote.make_actor, threads, where, log)))
                held.callback(self._replicas[-1].kill)
            with remote.errors_of_ours("the engine did not start in its Ray actor"):
                ray.get([replica.actor.start.remote(make_engine) for replica in self._replicas])
            self._held = held.pop_all()

    @property
    def replicas(self) -> Sequence[Replica]:
        """The replicas that are not gone."""
        return [replica for replica in self._replicas if not replica.gone]

    @property
    def oldest_version(self) -> int:
        """See `InferenceEngine.oldest_version`: of `rolling`, it follows when the last replica has an update."""
        return self._router.oldest

    async def generate(self, request: GenerateRequest) -> Response:
        """See `InferenceEngine.generate`; a request that a replica cannot answer any more is asked elsewhere.

        Raises:
            WeightSyncError: If an engine did not take the last weights.
            EngineGoneError: If every replica is given up, or the fleet is closed.
        """
        self._watch()
        losses = 0
        while losses < MOST_LOSSES:
            arrived = time.monotonic()
            await self._until(lambda: self._router.serves(request.least_version) and not self._paused)
            replica = self._replicas[self._router.take(request.conversation, request.least_version)]
            actor, response = replica.actor, None
            try:
                response = await replica.ask(request, time.monotonic() - arrived)
            except EngineGoneError as error:
                self._lose(replica, actor, str(error))
            finally:
                self._router.give_back(replica.number)
            if response is not None:
                return response
            self._counters["engine/moved_requests"] += 1
            losses += replica.gone or replica.actor is not actor
        raise EngineError(f"{losses} replicas of the fleet died of one request, or beside it; see the log for each")

    async def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `InferenceEngine.update_weights`; waits for the end of the rolling update before."""
        self._watch()
        self._paused = not self._rolling
        try:
            await self.wait_until_idle()
            update = self._update = await self._write(tensors, version)
            self._roll = roll = self._spawn(self._renew_all(update))
            await self._until(
                lambda: (
                    (self._rolling or roll.done())
                    and any(self._replicas[number].holds == update.number for number in self._router.open)
                )
            )
        finally:
            self._paused = False
            self._changed.notify()

    async def wait_until_idle(self) -> None:
        """Wait until every replica that is not gone serves the last update, or raise `WeightSyncError`."""
        if self._roll is not None:
            await asyncio.wait([self._roll])
        self._raise_failure()

    async def weights(self) -> Mapping[str, Tensor]:
        """See `InferenceEngine.weights`: they are in other processes."""
        return {}

    async def sleep(self) -> None:
        """See `InferenceEngine.sleep`; waits for engines that start, for they take their memory just now."""
        self._watch()
        await self.wait_until_idle()
        await self._until(
            lambda: self._asleep or len(self._router.open) == sum(not each.given_up for each in self._replicas)
        )
        self._asleep = True
        living = [replica for replica in self._replicas if not replica.given_up]
        errors = await asyncio.gather(*(replica.sleep() for replica in living), return_exceptions=True)
        for replica, error in zip(living, errors, strict=True):
            if error is not None:
                self._lose(replica, replica.actor, str(error))

    def counters(self) -> dict[str, float]:
        """Return the counters of each replica, and the numbers of moved requests and of restarts."""
        parts: list[dict[str, float]] = [dict(self._counters), *(replica.metrics() for replica in self._replicas)]
        return {name: value for part in parts for name, value in part.items()}

    async def close(self) -> None:
        """See `InferenceEngine.close`; a second call meanwhile waits for the first."""
        self._failure = EngineGoneError("the engine is closed")
        self._changed.notify()
        async with self._closing:
            for task in tuple(self._tasks):
                task.cancel()
            try:
                await asyncio.gather(*(replica.close() for replica in self._replicas))
            finally:
                await asyncio.to_thread(self._held.close)  # which has nothing to do the second time

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            for replica in self._replicas:
                self._spawn(self._look_after(replica, replica.actor))

    async def _write(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> Snapshot:
        """Return an update, whose bytes are written when those of the one before are free."""
        self._update = None
        self._writing = True
        try:
            # In another thread: gathering and copying the weights holds up no request of a rolling fleet.
            snapshot = await asyncio.to_thread(Snapshot.of, tensors, version)
        except WeightSyncError as error:
            self._failure = error  # there are no weights for a replica that is restarted
            raise
        finally:
            self._writing = self._asleep = False
            self._changed.notify()
        return snapshot

    async def _renew_all(self, update: Snapshot) -> None:
        """Bring every replica to the current weights, the least busy ones first."""
        replicas = sorted(self._replicas, key=lambda replica: replica.in_flight)
        await asyncio.gather(*(self._renew_one(replica, update) for replica in replicas))

    async def _renew_one(self, replica: Replica, update: Snapshot) -> None:

        def has_it() -> bool:  # one that is gone comes back with it
            return replica.gone or replica.holds == update.number

        def may_go_out() -> bool:
            out = sum(not each.gone for each in self._replicas) - len(self._router.open)
            return replica.number in self._router.open and out < self._most_out

        await self._until(lambda: has_it() or may_go_out())
        if not has_it():
            self._router.close(replica.number)
            await self._renew(replica, replica.actor)

    async def _renew(self, replica: Replica, actor: Any) -> None:
        """Drain a replica, load the current weights and admit it; lose it or give it up if that fails."""
        try:
            async with replica.lock:
                await replica.drain(self._drain_s)
                await self._until(lambda: not (self._writing or self._asleep))
                update = self._update
                if update is not None and not replica.gone:
                    await replica.load(update)
                if replica.actor is actor and not replica.gone:
                    replica.holds = update.number if update is not None else 0
                    self._router.reopen(replica.number, update.version if update is not None else 0)
        except EngineError as error:
            self._lose(replica, actor, str(error))
        except WeightSyncError as error:
            self._give_up(replica, WeightSyncError(f"engine {replica.number} of the fleet: {error}"))
        self._changed.notify()

    async def _look_after(self, replica: Replica, actor: Any) -> None:
        self._lose(replica, actor, await replica.watch(self._stall_s))

    def _lose(self, replica: Replica, actor: Any, reason: str) -> None:
        """Have a replica that is gone started again, in the background; its requests go elsewhere. Idempotent."""
        if replica.gone or replica.actor is not actor:
            return
        replica.lose()
        self._router.remove(replica.number)
        self._spawn(self._restart(replica, reason))
        self._changed.notify()

    async def _restart(self, replica: Replica, reason: str) -> None:
        """Start another replica, which gets the current weights and is admitted, or give up."""
        while replica.failures <= self._max_restarts:
            log.warning("engine %d of the fleet is gone and is started again: %s", replica.number, reason)
            if not self._router.open:
                log.warning("no engine of the fleet takes requests: rollouts pause until one does")
            await self._until(lambda: not self._asleep)  # its memory is the trainer's now
            self._counters["engine/restarts"] += 1
            reason = await replica.restart(self._make_engine)
            if not reason:
                self._spawn(self._look_after(replica, replica.actor))
                await self._renew(replica, replica.actor)
                return
        self._give_up(replica, EngineGoneError(reason))

    def _give_up(self, replica: Replica, error: ArpoError) -> None:
        """Go on without a replica; without any, all waiting calls fail with the reason."""
        log.error("engine %d of the fleet is given up: %s", replica.number, error)
        replica.gone = replica.given_up = True
        self._router.remove(replica.number)
        if isinstance(error, WeightSyncError):
            self._failure = error
        elif self._failure is None and all(other.given_up for other in self._replicas):
            self._failure = EngineGoneError(
                f"every engine of the fleet is gone, more than max_restarts={self._max_restarts} times in a row and "
                f"without an answer, lastly of this: {error}. Mend the cause (often it is memory: lower max_num_seqs "
                "or gpu_memory_utilization), then go on with resume=auto"
            )
        self._changed.notify()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _until(self, condition: Callable[[], bool]) -> None:

        def holds() -> bool:
            self._raise_failure()
            return condition()

        await self._changed.until(holds)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background; an error in it is one of the fleet."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
        self._changed.notify()
