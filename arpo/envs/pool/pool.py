"""The pool of environments: leases with deadlines, and a way back for every environment that breaks."""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

from arpo.envs.pool.backends import Backend, make_backend
from arpo.envs.pool.fleet import Fleet
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.pool.metrics import new_counters
from arpo.envs.pool.slots import Slot, SlotState, make_slots
from arpo.envs.pool.worker import Method
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ConfigError
from arpo.types import Task

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class EnvPool:
    """A pool of environments behind leases; all coroutines belong to one event loop.

    A lease whose environment failed ends with the environment taken out and restarted in the background, in its
    worker where that is alive, else in a new one. With several environments in a worker, a hang of one of them lets
    the other episodes on that worker end first, and only a crash of the whole process fails them.

    Args:
        make_env: Builds one environment, in a worker process; must be picklable.
        size: How many environments.
        envs_per_worker: How many of them share a process; 1 isolates crashes best.
        reset_timeout_s: Deadline for building and for resetting an environment.
        step_timeout_s: Deadline for one action.
        evaluate_timeout_s: Deadline for the checker.
        recycle_after: Rebuild an environment after this many episodes, because browsers leak; None: never.
        backend: `ray`, `thread` (this process, no Ray), or an object that starts workers.
    """

    def __init__(
        self,
        make_env: Callable[[], DesktopEnv],
        *,
        size: int,
        envs_per_worker: int = 1,
        reset_timeout_s: float = 60.0,
        step_timeout_s: float = 30.0,
        evaluate_timeout_s: float = 60.0,
        recycle_after: int | None = None,
        backend: Literal["ray", "thread"] | Backend = "ray",
    ) -> None:
        _check_positive(size=size, envs_per_worker=envs_per_worker, reset_timeout_s=reset_timeout_s)
        _check_positive(step_timeout_s=step_timeout_s, evaluate_timeout_s=evaluate_timeout_s)
        if recycle_after is not None:
            _check_positive(recycle_after=recycle_after)
        self.size = size
        self._make_env = make_env
        self._envs_per_worker = envs_per_worker
        self._recycle_after = recycle_after
        self._backend = make_backend(backend)
        self._counters = new_counters()
        self._deadlines: dict[Method, float] = {
            "build": reset_timeout_s,
            "reset": reset_timeout_s,
            "step": step_timeout_s,
            "evaluate": evaluate_timeout_s,
            "next_solution": step_timeout_s,
            "distractors": step_timeout_s,
            "close": CLOSE_TIMEOUT_S,
        }
        self._fleet: Fleet | None = None

    async def start(self) -> None:
        """Start all workers and build all environments; those that fail are tried again in the background.

        Raises:
            ConfigError: If the pool runs already, or the configuration cannot work here.
            EnvError: If no environment could be built at all.
        """
        if self._fleet is not None:
            raise ConfigError("the pool is started already; close it first")
        self._fleet = Fleet(
            make_slots(self.size, self._envs_per_worker),
            partial(self._backend.launch, self._make_env),
            recycle_after=self._recycle_after,
            deadlines=self._deadlines,
            counters=self._counters,
        )
        try:
            await self._backend.open()
            await self._fleet.build()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all environments and end their workers; idempotent, and `start` may follow."""
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            await fleet.close()
            await self._backend.close()

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[LeasedEnv]:
        """Wait for a free environment, preferably one that ran the task's domain last, and hold it for one episode.

        Raises:
            ConfigError: If the pool is not started or closed, or every environment was given up.
        """
        fleet = self._fleet
        if fleet is None:
            raise ConfigError("the pool is not running; call start() first")
        slot, env = await fleet.take(task.domain)
        slot.domains.pop(task.domain, None)
        slot.domains[task.domain] = None
        slot.since = time.monotonic()
        try:
            yield env
        finally:
            self._counters["env/busy_s"] += time.monotonic() - slot.since
            if env.fault is not None:
                log.warning("environment %s failed: %s: %s", slot.name, env.fault.kind, env.fault)
            self._counters["env/episodes" if env.fault is None else f"env/fault_{env.fault.kind}"] += 1
            fleet.give_back(slot, env.fault, used=True, dirty=env.interrupted)

    def counters(self) -> dict[str, float]:
        """Return what happened since the pool was made; every value only grows."""
        now = time.monotonic()
        running_s = sum(now - slot.since for slot in self._slots() if slot.state is SlotState.BUSY)
        return {**self._counters, "env/busy_s": self._counters["env/busy_s"] + running_s}

    def states(self) -> dict[str, int]:
        """Return how many environments are in each state now."""
        states = Counter(slot.state for slot in self._slots())
        return {state.value: states[state] for state in SlotState}

    def _slots(self) -> Sequence[Slot]:
        return self._fleet.slots if self._fleet is not None else ()


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} must be greater than 0, got {value}")
