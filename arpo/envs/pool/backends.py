"""The places in which workers of a pool run: Ray actors, threads of this process, or what somebody else writes."""

from collections.abc import Callable
from typing import Literal, Protocol

from arpo.envs.pool.ray import RayBackend
from arpo.envs.pool.worker import EnvWorker, Worker
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ConfigError


class Backend(Protocol):
    """A starter of workers."""

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


class ThreadBackend:
    """Workers in this process, for laptops and tests: an environment that crashes takes the process with it."""

    async def open(self) -> None:
        """Do nothing: threads are there."""

    async def launch(self, make_env: Callable[[], DesktopEnv], count: int) -> Worker:
        """Start the threads of one worker."""
        return EnvWorker(make_env, count)

    async def close(self) -> None:
        """Do nothing: threads end with the process."""


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
