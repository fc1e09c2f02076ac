"""The pace of environments: one whose every call ends just before its deadline breaks nothing, and all wait for it."""

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from statistics import median

from arpo.envs.pool.slots import Slot

WINDOW = 16
"""The number of last steps by which an environment is judged: a median of them forgives a long text."""
ENOUGH = 8
TIMES_SLOWER = 3.0
"""Than the median of the others: where a whole machine is busy, a new environment would be no faster."""


class Pace:
    """The last steps of every environment of a pool.

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

    def complaint(self, slot: Slot) -> str | None:
        """Return in words how slow an environment is, None where it is not, or has not taken enough steps.

        One that is as slow after it was built anew is not named again until it has been fast: the machine or its tasks
        are slow, and every new environment would cost more time.
        """
        usual_s = {each: median(steps_s) for each, steps_s in self._steps_s.items() if len(steps_s) >= ENOUGH}
        its_s = usual_s.pop(slot, 0.0)
        if self._slow_step_s is None or its_s <= self._slow_step_s:
            if its_s:
                self._named.discard(slot)
            return None
        if slot in self._named:
            return None
        words = f"its steps take {its_s:.1f} s in the median, more than slow_step_s={self._slow_step_s:g}"
        if usual_s:
            others_s = median(usual_s.values())
            if its_s <= TIMES_SLOWER * others_s:
                return None
            words += f", those of the others {others_s:.1f} s"
        self._named.add(slot)
        return words
