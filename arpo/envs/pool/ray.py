"""Workers in Ray actors, on this machine or on the nodes of a cluster."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from pickle import PicklingError
from typing import Any

from arpo.envs.pool.worker import WORKER_VARIABLE, EnvWorker
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ConfigError, EnvError, env_boundary
from arpo.host.processes import end_processes
from arpo.host.ray import MAX_CALLS_IN_FLIGHT, RAY, worker_environment

WORKER_START_TIMEOUT_S = 120.0


class RayWorker:
    """An `EnvWorker` in a Ray actor. Ray carries each call there; no code of ours lies between."""

    def __init__(self, actor: Any, label: str, on_kill: ExitStack) -> None:
        from ray.exceptions import RayError

        self.call: Callable[..., Awaitable[object]] = actor.call.remote
        self.failures: tuple[type[Exception], ...] = (RayError,)
        self._actor = actor
        self._label = label
        self._on_kill = on_kill

    async def wait_until_started(self) -> None:
        """Wait for the worker process."""
        try:
            async with asyncio.timeout(WORKER_START_TIMEOUT_S):
                await self._actor.__ray_ready__.remote()
        except TimeoutError as error:
            raise EnvError("timeout", f"no worker process started within {WORKER_START_TIMEOUT_S:.0f} s") from error
        except self.failures as error:
            raise EnvError("crash", f"the worker process did not start: {error}") from error

    async def kill(self) -> None:
        """Kill the actor, then the browsers that it cannot close any more, as far as they are on this machine."""
        import ray

        with suppress(*self.failures):  # then there is no Ray, and no actor either
            ray.kill(self._actor, no_restart=True)
        self._on_kill.close()
        await asyncio.to_thread(end_processes, self._label, variable=WORKER_VARIABLE)


class Placement:
    """A spread of workers over resources such as `docker:10.0.0.2`, each worth as many environments as its node said.

    It belongs to the event loop of its pool. `read` returns all that the cluster has now, by name: nodes come and go.
    """

    def __init__(self, kind: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._prefix = f"{kind}:"
        self._read = read
        self._taken: Counter[str] = Counter()

    def take(self, count: int) -> str:
        """Return the resource with the most room, and take `count` of it."""
        rooms = {
            name: capacity - self._taken[name]
            for name, capacity in self._read().items()
            if name.startswith(self._prefix)
        }
        best = max(rooms, key=lambda name: rooms[name], default=None)
        if best is None or rooms[best] < count:
            listed = ", ".join(f"{name} ({room:g} left)" for name, room in sorted(rooms.items())) or "none"
            example = f"ray start --address=HEAD:6379 --resources='{{\"{self._prefix}10.0.0.2\": 16}}'"
            raise ConfigError(
                f"no node of the cluster has room for {count} more environments; nodes with an engine: {listed}. "
                f"Start each with its address and number: {example}, or lower size or envs_per_worker"
            )
        self._taken[best] += count
        return best

    def free(self, name: str, count: int) -> None:
        """Return to a node what was taken."""
        self._taken[name] -= count


class RayBackend:
    """Ray actors, on this machine or, where `RAY_ADDRESS` is set, on a cluster.

    Args:
        placement: Kind of the resources that say, on a cluster, how many environments each node can take: with
            `docker`, workers go to nodes with `docker:<ip>`. None: anywhere. On a Ray of our own, which is one
            machine, it means nothing.
    """

    def __init__(self, placement: str | None = None) -> None:
        self._kind = placement
        self._placement: Placement | None = None
        self._opened = False

    async def open(self) -> None:
        """Start Ray, or join the one that runs in this process or at `RAY_ADDRESS`."""
        await asyncio.wrap_future(RAY.acquire())
        self._opened = True
        if self._kind is not None and not RAY.owned:
            import ray

            self._placement = Placement(self._kind, ray.cluster_resources)

    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> RayWorker:
        """Start an actor."""
        import ray

        with ExitStack() as on_kill:
            resources = {}
            if self._placement is not None:
                name = self._placement.take(count)
                on_kill.callback(self._placement.free, name, count)
                resources[name] = count
            label = uuid.uuid4().hex
            actor = ray.remote(EnvWorker).options(
                num_cpus=0,  # environments wait more than they compute, and any number must fit
                resources=resources,
                max_restarts=0,
                max_concurrency=MAX_CALLS_IN_FLIGHT,
                # A Ray of our own hands our environment and import path to its workers, and starts them faster so.
                runtime_env=None if RAY.owned else {"env_vars": worker_environment()},
            )
            with env_boundary("crash", "starting a worker process"):
                try:
                    started = actor.remote(make_env, count, label)
                except (TypeError, PicklingError) as error:
                    raise ConfigError(f"make_env must be picklable to travel to a worker process: {error}") from error
            worker = RayWorker(started, label, on_kill.pop_all())
        try:
            await worker.wait_until_started()
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def close(self) -> None:
        """Stop Ray, if we started it and no other pool uses it."""
        if self._opened:
            self._opened = False
            await asyncio.wrap_future(RAY.release())
