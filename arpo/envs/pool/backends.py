"""Where the environments of a pool run: in Ray actors, or in threads of this process."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pickle import PicklingError
from typing import Any, Literal, Protocol

from arpo.envs.pool.placement import Placement
from arpo.envs.pool.slots import Worker
from arpo.envs.pool.worker import WORKER_VARIABLE, EnvWorker, Method, new_worker_label
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ConfigError, EnvError, env_boundary
from arpo.host.processes import end_processes
from arpo.host.ray import RAY, worker_environment

log = logging.getLogger(__name__)

WORKER_START_TIMEOUT_S = 120.0
MAX_CALLS_IN_FLIGHT = 1000


class Backend(Protocol):
    """Starts workers."""

    async def open(self) -> None:
        """Prepare; called once before the first worker."""
        ...

    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> Worker:
        """Start a worker with room for some environments; it builds none yet.

        Raises:
            EnvError: If the worker does not start.
        """
        ...

    async def close(self) -> None:
        """Free what `open` took; every worker was killed before."""
        ...


class ThreadWorker:
    """A worker in this process. A hung environment keeps its thread until the process ends."""

    def __init__(self, make_env: Callable[[], DesktopEnv], count: int) -> None:
        self._worker = EnvWorker(make_env, count)

    async def call(self, index: int, method: Method, *arguments: object) -> object:
        """Run a method of one environment in its thread."""
        return await self._worker.call(index, method, *arguments)

    async def kill(self) -> None:
        """Close what can be closed, without waiting for what hangs."""
        self._worker.dismiss()


class ThreadBackend:
    """Runs environments in threads: for laptops and tests. A crashing environment takes the process with it."""

    async def open(self) -> None:
        """Do nothing: threads are there."""

    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> Worker:
        """Start the threads of one worker."""
        return ThreadWorker(make_env, count)

    async def close(self) -> None:
        """Do nothing: threads end with the process."""


class RayWorker:
    """A worker in a Ray actor."""

    def __init__(self, actor: Any, label: str, free: Callable[[], None]) -> None:
        self._actor = actor
        self._label = label
        self._free = free

    async def wait_until_started(self, timeout_s: float) -> None:
        """Wait for the worker process.

        Raises:
            EnvError: If it dies at once, or does not start in time.
        """
        try:
            process_id = await asyncio.wait_for(_answer(self._actor.process_id.remote()), timeout_s)
        except TimeoutError as error:
            raise EnvError("timeout", f"no worker process started within {timeout_s:.0f} s") from error
        log.debug("worker process %s has label %s", process_id, self._label)

    async def call(self, index: int, method: Method, *arguments: object) -> object:
        """Run a method of one environment in the actor."""
        return await _answer(self._actor.call.remote(index, method, *arguments))

    async def kill(self) -> None:
        """Kill the actor, then the browsers that it cannot close any more, as far as they are on this machine."""
        import ray
        from ray.exceptions import RayError

        with suppress(RayError):  # then there is no Ray, and no actor either
            ray.kill(self._actor, no_restart=True)
        free, self._free = self._free, _nothing
        free()
        await asyncio.to_thread(end_processes, self._label, variable=WORKER_VARIABLE)


class RayBackend:
    """Runs environments in Ray actors, on this machine or, where `RAY_ADDRESS` is set, on a cluster.

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

    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> Worker:
        """Start an actor. It asks for no CPU: environments wait more than they compute, and any number must fit."""
        import ray

        label = new_worker_label()
        resources, free = self._place(count)
        actor = ray.remote(EnvWorker).options(
            num_cpus=0,
            resources=resources,
            max_restarts=0,
            max_concurrency=MAX_CALLS_IN_FLIGHT,
            # A Ray of our own hands our environment and import path to its workers, and starts them faster so.
            runtime_env=None if RAY.owned else {"env_vars": worker_environment()},
        )
        try:
            with env_boundary("crash", "starting a worker process"):
                worker = RayWorker(actor.remote(make_env, count, label), label, free)
        except EnvError as error:
            free()
            if isinstance(error.__cause__, TypeError | PicklingError):
                raise ConfigError(f"make_env must be picklable to travel to a worker process: {error}") from error
            raise
        try:
            await worker.wait_until_started(WORKER_START_TIMEOUT_S)
        except BaseException:
            await worker.kill()
            raise
        return worker

    def _place(self, count: int) -> tuple[Mapping[str, float], Callable[[], None]]:
        """Return the resources that a worker takes, and what gives them back."""
        if self._placement is None:
            return {}, _nothing
        name = self._placement.take(count)
        return {name: count}, partial(self._placement.free, name, count)

    async def close(self) -> None:
        """Stop Ray, if we started it and no other pool uses it."""
        if self._opened:
            self._opened = False
            await asyncio.wrap_future(RAY.release())


def _nothing() -> None:
    """Give back nothing."""


def make_backend(backend: Literal["ray", "thread"] | Backend) -> Backend:
    """Return the backend that a name stands for; an object stands for itself.

    Raises:
        ConfigError: If the name is unknown.
    """
    match backend:
        case "ray":
            return RayBackend()
        case "thread":
            return ThreadBackend()
        case str():
            raise ConfigError(f"backend must be 'ray', 'thread' or an object that starts workers, got {backend!r}")
        case _:
            return backend


async def _answer(reference: Any) -> Any:
    from ray.exceptions import RayError

    try:
        return await reference
    except RayError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise EnvError("crash", f"the worker process failed: {type(error).__name__}: {first_line}") from error
