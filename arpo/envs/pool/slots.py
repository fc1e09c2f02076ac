"""The queue for the next free environment: the slots of a pool, their states, and those who wait."""

import asyncio
from collections import deque
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
        self._queue: deque[Slot | ArpoError] = deque()
        self._length = asyncio.Semaphore(0)

    async def take(self) -> Slot:
        """Wait for a free slot; it is busy from then on.

        Raises:
            ArpoError: If no slot will ever be free; see `refuse`.
        """
        while True:
            await self._length.acquire()
            slot = self._queue.popleft()
            if isinstance(slot, ArpoError):
                self._add(slot)  # for whoever comes next
                raise copy(slot)  # one object raised in many tasks would collect all their tracebacks
            if slot.state is SlotState.IDLE:  # else its worker died while it was free, and it will be given again
                slot.state = SlotState.BUSY
                return slot

    def give(self, slot: Slot) -> None:
        """Declare a slot free."""
        slot.state = SlotState.IDLE
        self._add(slot)

    def refuse(self, error: ArpoError) -> None:
        """Raise an error in everyone who waits, and in everyone who comes later."""
        self._queue.clear()
        self._add(error)

    def _add(self, item: Slot | ArpoError) -> None:
        self._queue.append(item)
        self._length.release()
