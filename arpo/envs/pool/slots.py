"""The queue for the next free environment: the slots of a pool, their states, and those who wait."""

import asyncio
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum

from arpo.envs.pool.worker import Worker
from arpo.errors import ArpoError


class SlotState(StrEnum):
    """The states of an environment of the pool."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    RECYCLING = "recycling"
    RESTARTING = "restarting"
    LOST = "lost"
    """The pool has given it up after too many failed restarts."""


@dataclass(slots=True, eq=False)
class Host:
    """The place of one worker, and the slots that it serves."""

    worker: Worker | None = None
    dead: Worker | None = None
    """The one before: it is killed before the next one starts, which may want what it holds."""
    slots: "list[Slot]" = field(default_factory=list)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True, eq=False)
class Slot:
    """One environment of the pool."""

    name: str
    host: Host
    index: int
    """Position in its worker."""
    worker: Worker | None = None
    """The worker that its environment is in; the host may have another one by now."""
    state: SlotState = SlotState.STARTING
    episodes: int = 0
    """Episodes since the environment was built."""
    since: float = 0.0
    """The moment at which the running lease began."""


def make_slots(size: int, envs_per_worker: int) -> list[Slot]:
    """Return slots in their hosts, of which the last one may have fewer."""
    slots: list[Slot] = []
    for number in range(size):
        index = number % envs_per_worker
        host = Host() if index == 0 else slots[-1].host
        slots.append(Slot(f"{number + 1}/{size}", host, index))
        host.slots.append(slots[-1])
    return slots


class Roster:
    """A queue for free slots: first come, first served, and the longest free is taken first."""

    def __init__(self) -> None:
        self._idle: dict[Slot, None] = {}  # in the order in which they became free
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._refusal: ArpoError | None = None

    async def take(self, give_back: Callable[[Slot], None]) -> Slot:
        """Wait for a slot; it is busy from then on.

        Args:
            give_back: Called with the slot if the waiter is cancelled during the handover.

        Raises:
            ArpoError: If no slot will ever be free; see `refuse`.
        """
        if self._refusal is not None:
            raise copy(self._refusal)  # one object raised in many tasks would collect all their tracebacks
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._match()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                give_back(future.result())
            raise

    def give(self, slot: Slot) -> None:
        """Declare a slot free."""
        slot.state = SlotState.IDLE
        self._idle[slot] = None
        self._match()

    def withdraw(self, slot: Slot) -> None:
        """Take a free slot out of service."""
        del self._idle[slot]

    def refuse(self, error: ArpoError) -> None:
        """Raise an error in everyone who waits, and in everyone who comes later."""
        self._refusal = error
        for future in self._waiting:
            if not future.done():
                future.set_exception(copy(error))
        self._waiting.clear()

    def _match(self) -> None:
        while self._idle and self._waiting:
            future = self._waiting.popleft()
            if future.done():  # the waiter was cancelled
                continue
            slot = next(iter(self._idle))
            del self._idle[slot]
            slot.state = SlotState.BUSY
            future.set_result(slot)
