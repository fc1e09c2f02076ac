"""The environments behind a pool: building them, taking broken ones out, and bringing them back."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.pool.metrics import Counters
from arpo.envs.pool.slots import Host, Roster, Slot, SlotState
from arpo.envs.pool.worker import Method, Worker
from arpo.errors import ArpoError, ConfigError, EnvError

log = logging.getLogger(__name__)

FATAL_KINDS = ("timeout", "crash")
"""Faults after which the worker has to go: nothing else ends a call that hangs."""
RESTART_DELAYS = (0.0, 0.03, 0.12, 0.5, 1.0)
"""Waits before the attempts at one restart, in units of the build deadline: it says how slow an environment is.
When all of them fail, the environment is given up."""


class Fleet:
    """The environments of a running pool. It builds each, lends it, and builds it again when it breaks."""

    def __init__(
        self,
        slots: Sequence[Slot],
        launch: Callable[[int], Awaitable[Worker]],
        *,
        recycle_after: int | None,
        deadlines: Mapping[Method, float],
        counters: Counters,
    ) -> None:
        """Take over slots without workers.

        Args:
            slots: The result of `make_slots`.
            launch: Starts a worker for so many environments.
            recycle_after: Rebuild an environment after this many episodes; None: never.
            deadlines: Seconds that a call of each method may take.
            counters: Those of the pool.
        """
        self.slots = slots
        self._launch = launch
        self._recycle_after = recycle_after
        self._deadlines = deadlines
        self._counters = counters
        self._roster = Roster()
        self._repairs: set[asyncio.Task[None]] = set()
        self._closed = False

    async def build(self) -> None:
        """Build all environments; those that fail are tried again in the background.

        Raises:
            ConfigError: If the configuration cannot work here.
            EnvError: If not one environment could be built.
        """
        errors = await asyncio.gather(*(self._build(slot) for slot in self.slots))
        failures = [error for error in errors if error is not None]
        for error in failures:
            if isinstance(error, ConfigError):
                raise error
        if len(failures) == len(errors):
            raise failures[0]
        for slot, outcome in zip(self.slots, errors, strict=True):
            if outcome is not None:
                self._repair(slot, SlotState.RESTARTING)
        log.info("%d of %d environments are ready", errors.count(None), len(errors))

    async def take(self, domain: str) -> tuple[Slot, LeasedEnv]:
        """Wait for a free environment.

        Raises:
            ConfigError: If the fleet is closed, or every environment was given up.
        """
        slot = await self._roster.take(domain, give_back=self.give_back)
        assert slot.host.worker is not None
        return slot, self._env(slot, slot.host.worker)

    def give_back(self, slot: Slot, fault: EnvError | None = None, *, used: bool = False, dirty: bool = False) -> None:
        """End the use of an environment.

        Args:
            slot: The slot that `take` returned.
            fault: The error that broke it.
            used: Whether an episode ran.
            dirty: Whether a call may still be running in it.
        """
        if self._closed:
            return
        if fault is not None and fault.kind in FATAL_KINDS:
            self._condemn(slot.host)
        slot.episodes += used
        if fault is not None or dirty or slot.host.condemned:
            self._repair(slot, SlotState.RESTARTING)
        elif slot.episodes == self._recycle_after:
            self._repair(slot, SlotState.RECYCLING)
        else:
            self._roster.give(slot)
        slot.host.vacated.set()

    async def close(self) -> None:
        """Close all environments and end their workers."""
        self._closed = True
        self._roster.refuse(ConfigError("the pool is closed"))
        repairs = list(self._repairs)
        for repair in repairs:
            repair.cancel()
        await asyncio.gather(*repairs, return_exceptions=True)
        hosts = {id(slot.host): slot.host for slot in self.slots}.values()
        await asyncio.gather(*(self._close_host(host) for host in hosts))

    def _env(self, slot: Slot, worker: Worker) -> LeasedEnv:
        return LeasedEnv(slot.name, worker, slot.index, self._deadlines, self._counters)

    def _condemn(self, host: Host) -> None:
        """Close a worker to new leases: it is dead or has a hung environment, and is replaced when it is empty."""
        host.condemned = True
        for slot in host.slots:
            if slot.state is SlotState.IDLE:
                self._roster.withdraw(slot)
                self._repair(slot, SlotState.RESTARTING)

    def _repair(self, slot: Slot, state: SlotState) -> None:
        slot.state = state
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
        self._lose(slot, error)

    def _lose(self, slot: Slot, error: ArpoError | None) -> None:
        slot.state = SlotState.LOST
        self._counters["env/lost"] += 1
        log.error("environment %s is given up after %d failed restarts: %s", slot.name, len(RESTART_DELAYS), error)
        if all(other.state is SlotState.LOST for other in self.slots):
            number = len(self.slots)
            message = f"no environment is left: all {number} were given up; the last one failed with: {error}"
            self._roster.refuse(ConfigError(message))

    async def _build(self, slot: Slot) -> ArpoError | None:
        """Build one environment and offer it to those who wait; return the error if it does not come up."""
        worker = None
        try:
            worker = await self._living_worker(slot.host)
            await self._env(slot, worker).call("build")
        except (EnvError, ConfigError) as error:
            log.warning("environment %s did not start: %s", slot.name, error)
            if isinstance(error, EnvError) and error.kind in FATAL_KINDS and slot.host.worker is worker:
                self._condemn(slot.host)
            return error
        if slot.host.condemned:
            return EnvError("crash", f"environment {slot.name} lost its worker while it was built")
        slot.episodes = 0
        slot.domains.clear()
        self._roster.give(slot)
        return None

    async def _living_worker(self, host: Host) -> Worker:
        """Return the worker of a host; replace a condemned one as soon as it is empty."""
        async with host.replacing:
            if host.worker is not None and not host.condemned:
                return host.worker
            while host.busy:
                host.vacated.clear()
                await host.vacated.wait()
            if host.worker is not None:
                worker, host.worker = host.worker, None
                await worker.kill()
            host.worker = await self._launch(len(host.slots))
            host.condemned = False
            return host.worker

    async def _close_host(self, host: Host) -> None:
        if host.worker is None:
            return
        closing = (self._env(slot, host.worker).call("close") for slot in host.slots)
        await asyncio.gather(*closing, return_exceptions=True)  # an environment that does not close is killed
        await host.worker.kill()
