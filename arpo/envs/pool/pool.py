"""The pool of environments: leases with deadlines, and a way back for every environment that breaks."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy

from arpo.bounds import AtLeastOne, Positive, checked
from arpo.envs.pool.lease import LeasedEnv, new_counters
from arpo.envs.pool.ray import RayBackend
from arpo.envs.pool.slots import Host, Slot, SlotState, make_slots, slow_reason
from arpo.envs.pool.worker import Backend, Method, ThreadBackend, Worker
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ArpoError, ConfigError, EnvError
from arpo.types import Task

log = logging.getLogger(__name__)

BACKENDS: dict[str, Callable[[], Backend]] = {"ray": RayBackend, "thread": ThreadBackend}
CLOSE_TIMEOUT_S = 5.0
RESTART_DELAYS = (0.0, 0.03, 0.12, 0.5, 1.0)
"""Waits before the attempts at one restart, in units of the build deadline: it says how slow an environment is.
When all of them fail, the environment is given up."""


@checked
class EnvPool:
    """A pool of environments behind leases; all coroutines belong to one event loop.

    A lease whose environment failed ends with the environment taken out and built again in the background. Where it
    shares a worker with others, they go on: a call that hangs keeps its thread, and the new environment gets another.
    A worker is replaced when its process died, when a build in it hangs, or when nothing else is in it than a call
    that hangs.

    Args:
        make_env: Builds one environment, in a worker process; must be picklable.
        size: How many environments.
        envs_per_worker: How many of them share a process. For what only waits, such as desktops behind a socket, as
            many as a machine has; for what computes or may crash, fewer: 1 isolates crashes best.
        reset_timeout_s: Deadline for building and for resetting an environment.
        step_timeout_s: Deadline for one action.
        evaluate_timeout_s: Deadline for the checker.
        recycle_after: Rebuild an environment after this many episodes, because browsers leak; None: never.
        slow_step_s: Rebuild an environment after an episode where its last steps took longer than this in the median,
            and much longer than those of the others: no call of it misses a deadline, and all wait for it. The episode
            counts, for nothing in it went wrong. None: never.
        backend: `ray`, `thread` (this process, no Ray), or an object that starts workers.
    """

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        make_env: Callable[[], DesktopEnv],
        *,
        size: AtLeastOne,
        envs_per_worker: AtLeastOne = 1,
        reset_timeout_s: Positive = 60.0,
        step_timeout_s: Positive = 30.0,
        evaluate_timeout_s: Positive = 60.0,
        recycle_after: AtLeastOne | None = None,
        slow_step_s: Positive | None = None,
        backend: str | Backend = "ray",
    ) -> None:
        self.size = size
        self._make_env = make_env
        self._envs_per_worker = envs_per_worker
        self._recycle_after = recycle_after
        self._slow_step_s = slow_step_s
        if isinstance(backend, str) and backend not in BACKENDS:
            raise ConfigError(f"backend must be 'ray', 'thread' or an object that starts workers, got {backend!r}")
        self._backend = BACKENDS[backend]() if isinstance(backend, str) else backend
        self._counters = new_counters()
        self._deadlines: dict[Method, float] = {
            "build": reset_timeout_s,
            "reset": reset_timeout_s,
            "step": step_timeout_s,
            "evaluate": evaluate_timeout_s,
            "devtools": reset_timeout_s,
            "execute": step_timeout_s,
            "look": step_timeout_s,
            "next_solution": step_timeout_s,
            "distractors": step_timeout_s,
            "close": CLOSE_TIMEOUT_S,
        }
        self._slots: Sequence[Slot] = ()  # empty while the pool is not running
        self._free: asyncio.Queue[Slot | ArpoError] = asyncio.Queue()  # an error is for every waiter
        self._repairs: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start all workers and build all environments, one at least; others that fail are tried again meanwhile."""
        if self._slots:
            raise ConfigError("the pool is started already; close it first")
        self._slots, self._free = make_slots(self.size, self._envs_per_worker), asyncio.Queue()
        try:
            await self._backend.open()
            await self._build_all()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all environments and end their workers; idempotent, and `start` may follow."""
        slots, self._slots = self._slots, ()
        if not slots:
            return
        while not self._free.empty():
            self._free.get_nowait()
        self._free.put_nowait(ConfigError("the pool is closed"))
        repairs = list(self._repairs)
        for repair in repairs:
            repair.cancel()
        await asyncio.gather(*repairs, return_exceptions=True)
        await asyncio.gather(*(self._close_host(host) for host in {slot.host for slot in slots}))
        await self._backend.close()

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[LeasedEnv]:
        """Wait for a free environment and hold it for one episode of a task, which the log names where it broke."""
        if not self._slots:
            raise ConfigError("the pool is not running; call start() first")
        slot = await self._take()
        env = self._env(slot)
        slot.since = time.monotonic()
        try:
            yield env
        finally:
            self._counters["env/busy_s"] += time.monotonic() - slot.since
            if env.fault is not None:
                log.warning("environment %s failed at %s: %s: %s", slot.name, task.id, env.fault.kind, env.fault)
            self._counters["env/episodes" if env.fault is None else f"env/fault_{env.fault.kind}"] += 1
            slot.episodes += 1
            slot.steps_s.extend(env.steps_s)
            self._give_back(slot, env)

    def counters(self) -> dict[str, float]:
        """Return counts and seconds since the pool was made; every value only grows."""
        now = time.monotonic()
        running_s = sum(now - slot.since for slot in self._slots if slot.state is SlotState.BUSY)
        return self._counters | {"env/busy_s": self._counters["env/busy_s"] + running_s}

    def states(self) -> dict[str, int]:
        """Count the environments in each state."""
        states = Counter(slot.state for slot in self._slots)
        return {state.value: states[state] for state in SlotState}

    async def _take(self) -> Slot:
        """Wait for a free slot, the one that is free for longest; it is busy from then on."""
        while True:
            slot = await self._free.get()
            if isinstance(slot, ArpoError):
                self._free.put_nowait(slot)
                raise copy(slot)  # one object raised in many tasks would collect all their tracebacks
            if slot.state is SlotState.IDLE:  # else its worker died while it was free, and it will be given again
                slot.state = SlotState.BUSY
                return slot

    def _give(self, slot: Slot) -> None:
        slot.state = SlotState.IDLE
        self._free.put_nowait(slot)

    def _env(self, slot: Slot) -> LeasedEnv:
        assert slot.worker is not None
        return LeasedEnv(slot.name, slot.worker, slot.host.slots.index(slot), self._deadlines, self._counters)

    async def _build_all(self) -> None:
        errors = await asyncio.gather(*(self._build(slot) for slot in self._slots))
        failures = [error for error in errors if error is not None]
        hopeless = [error for error in failures if isinstance(error, ConfigError)]
        if hopeless or len(failures) == len(errors):
            raise (hopeless or failures)[0]
        for slot, outcome in zip(self._slots, errors, strict=True):
            if outcome is not None:
                self._repair(slot, SlotState.RESTARTING)
        log.info("%d of %d environments are ready", errors.count(None), len(errors))

    async def _build(self, slot: Slot) -> ArpoError | None:
        """Build one environment and declare it free; return the error if it does not come up."""
        env: LeasedEnv | None = None
        try:
            slot.worker = await self._living_worker(slot.host)
            env = self._env(slot)
            await env.call("build")
        except (EnvError, ConfigError) as error:
            log.warning("environment %s did not start: %s", slot.name, error)
            if env is not None and (env.worker_died or env.hangs):
                self._lose_worker(slot)
            return error
        if slot.worker is not slot.host.worker:
            return EnvError("crash", f"environment {slot.name} lost its worker while it was built")
        slot.episodes = 0
        self._give(slot)
        return None

    async def _living_worker(self, host: Host) -> Worker:
        """Return the worker of a host; the first call starts one where there is none."""
        async with host.starting:
            if host.dead is not None:
                await host.dead.kill()
                host.dead = None
            if host.worker is None:
                host.worker = await self._backend.launch(self._make_env, len(host.slots))
            return host.worker

    def _give_back(self, slot: Slot, env: LeasedEnv) -> None:
        if slot not in self._slots:  # the pool was closed meanwhile
            return
        is_alone = len(slot.host.slots) == 1
        if env.worker_died or (env.hangs and is_alone):
            self._lose_worker(slot)
        if env.fault is not None or env.interrupted or slot.worker is not slot.host.worker:
            self._repair(slot, SlotState.RESTARTING)
        elif slot.episodes == self._recycle_after:
            self._repair(slot, SlotState.RECYCLING)
        elif self._slow_step_s and (reason := slow_reason(slot, self._slots, self._slow_step_s)):
            log.warning("environment %s is slow and is built anew: %s", slot.name, reason)
            self._counters["env/slow"] += 1
            self._repair(slot, SlotState.RECYCLING)
        else:
            self._give(slot)

    def _lose_worker(self, slot: Slot) -> None:
        """Take the worker of an environment from its host, and the free environments with it; others notice."""
        host = slot.host
        if slot.worker is not host.worker:  # another environment was faster
            return
        host.dead, host.worker = host.worker, None
        for neighbour in host.slots:
            if neighbour.state is SlotState.IDLE:
                self._repair(neighbour, SlotState.RESTARTING)

    def _repair(self, slot: Slot, state: SlotState) -> None:
        slot.state = state
        slot.steps_s.clear()
        repair = asyncio.create_task(self._restore(slot))
        self._repairs.add(repair)
        repair.add_done_callback(self._repairs.discard)

    async def _restore(self, slot: Slot) -> None:
        """Build an environment again; try several times, then give it up."""
        success = "recycled" if slot.state is SlotState.RECYCLING else "restarts"
        began = time.monotonic()
        error: ArpoError | None = None
        for delay in RESTART_DELAYS:
            await asyncio.sleep(delay * self._deadlines["build"])
            error = await self._build(slot)
            if error is None:
                seconds = time.monotonic() - began
                self._counters[f"env/{success}"] += 1
                self._counters["env/restart_s"] += seconds
                log.info("environment %s is back after %.1f s", slot.name, seconds)
                return
            self._counters["env/restart_failures"] += 1
        slot.state = SlotState.LOST
        self._counters["env/lost"] += 1
        log.error("environment %s is given up after %d failed restarts: %s", slot.name, len(RESTART_DELAYS), error)
        if self.states()["lost"] == self.size:
            message = f"no environment is left: all {self.size} were given up; the last one failed with: {error}"
            self._free.put_nowait(ConfigError(message))

    async def _close_host(self, host: Host) -> None:
        here = [slot for slot in host.slots if slot.worker is not None and slot.worker is host.worker]
        closing = (self._env(slot).call("close") for slot in here)
        await asyncio.gather(*closing, return_exceptions=True)  # an environment that does not close is killed
        for worker in filter(None, (host.dead, host.worker)):
            await worker.kill()
