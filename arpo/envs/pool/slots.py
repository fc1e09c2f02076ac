"""The slots of a pool and their states, the queue for the next free one, and the pace of their environments."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import median

from arpo.envs.pool.worker import Worker
from arpo.errors import ArpoError

WINDOW = 16
"""The number of last steps by which an environment is judged: a median of them forgives a long text."""
ENOUGH = 8
TIMES_SLOWER = 3.0
"""Than the median of the others: where a whole machine is busy, a new environment would be no faster."""


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
        """Wait for a free slot; it is busy from then on."""
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


class Pace:
    """The last steps of every environment of a pool.

    One whose every call ends just before its deadline breaks nothing, and all wait for it.

    Args:
        slow_step_s: Seconds of a step that nobody calls slow; None: nothing is ever slow.
    """

    def __init__(self, slow_step_s: float | None) -> None:
        self._slow_step_s = slow_step_s
        self._steps_s: defaultdict[Slot, deque[float]] = defaultdict(partial(deque, maxlen=WINDOW))
        self._named: set[Slot] = set()

    def add(self, slot: Slot, steps_s: Sequence[float]) -> None:
        """Note the steps of an episode, in seconds."""
        self._steps_s[slot].extend(steps_s)

    def forget(self, slot: Slot) -> None:
        """Begin anew with an environment that was built anew."""
        self._steps_s.pop(slot, None)

    def complaint(self, slot: Slot, *, others: int) -> str | None:
        """Return in words how slow an environment is, None where it is not, or has not taken enough steps.

        Where fewer than half of the others have taken enough to compare with, all may be slow, and none is named: to
        build one anew makes a busy machine slower still.

        One that is as slow after it was built anew is not named again until it has been fast: the machine or its tasks
        are slow, and every new environment would cost more time.

        Args:
            slot: Of the environment.
            others: How many more the pool has.
        """
        usual_s = {each: median(steps_s) for each, steps_s in self._steps_s.items() if len(steps_s) >= ENOUGH}
        its_s = usual_s.pop(slot, 0.0)
        if self._slow_step_s is None or its_s <= self._slow_step_s:
            if its_s:
                self._named.discard(slot)
            return None
        if slot in self._named or 2 * len(usual_s) < others:
            return None
        words = f"its steps take {its_s:.1f} s in the median, more than slow_step_s={self._slow_step_s:g}"
        if usual_s:
            others_s = median(usual_s.values())
            if its_s <= TIMES_SLOWER * others_s:
                return None
            words += f", those of the others {others_s:.1f} s"
        self._named.add(slot)
        return words
