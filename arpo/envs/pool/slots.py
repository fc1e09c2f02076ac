"""The slots of a pool and their states, and how slow an environment may be."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import median

from arpo.envs.pool.worker import Worker

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
    """By their positions in the worker."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True, eq=False)
class Slot:
    """One environment of the pool."""

    name: str
    host: Host
    worker: Worker | None = None
    """The one that its environment is in; the host may have another by now."""
    state: SlotState = SlotState.STARTING
    episodes: int = 0
    """Since the environment was built."""
    since: float = 0.0
    """The moment at which the running lease began."""
    steps_s: deque[float] = field(default_factory=partial(deque, maxlen=WINDOW))
    """Seconds of the last steps since it was built."""
    was_slow: bool = False
    """Whether it was built anew because it was slow, and has not been fast since."""


def make_slots(size: int, envs_per_worker: int) -> list[Slot]:
    """Return slots in their hosts, of which the last one may have fewer."""
    slots: list[Slot] = []
    for number in range(size):
        host = Host() if number % envs_per_worker == 0 else slots[-1].host
        slots.append(Slot(f"{number + 1}/{size}", host))
        host.slots.append(slots[-1])
    return slots


def slow_reason(slot: Slot, slots: Sequence[Slot], slow_step_s: float) -> str | None:
    """Return the reason to call an environment of a pool slow, None where there is none, or too few steps were taken.

    Where fewer than half of the others have taken enough steps to compare with, all may be slow, and none is named: to
    build one anew makes a busy machine slower still. One that is as slow after it was built anew is not named again
    until it has been fast: the machine or its tasks are slow, and every new environment would cost more time.
    """
    usual_s = {each: median(each.steps_s) for each in slots if len(each.steps_s) >= ENOUGH}
    its_s = usual_s.pop(slot, 0.0)
    if its_s <= slow_step_s:
        slot.was_slow &= not its_s
        return None
    others = sum(each.state is not SlotState.LOST for each in slots) - 1
    if slot.was_slow or 2 * len(usual_s) < others:
        return None
    reason = f"its steps take {its_s:.1f} s in the median, more than slow_step_s={slow_step_s:g}"
    if usual_s:
        others_s = median(usual_s.values())
        if its_s <= TIMES_SLOWER * others_s:
            return None
        reason += f", those of the others {others_s:.1f} s"
    slot.was_slow = True
    return reason
