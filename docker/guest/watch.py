"""What keeps a call to the X server from its answer: the programs of the desktop, or this machine."""

import walls
from desktop import Holder, Turn

MOST_WORK_S = 0.5
"""Of the X server and of this server for one call, which takes milliseconds."""
MOST_SLEEPS = 8
"""Looks in a row at which the X server slept though it owed an answer."""
MOST_RUNNING = 64
"""Threads that compute at once: no application has so many, and they leave no core for this server."""


class Watch:
    """A look at the call that this server makes to the X server, again and again.

    A busy machine looks different from what programs do: there neither server works before the answer comes, both wait
    for a core rather than sleep, and few programs run. An X server that was stopped from outside is stopped,
    and does not sleep: no program of the desktop can stop it.

    Args:
        turn: Of the callers.
        x_server: Id of its process.
    """

    def __init__(self, turn: Turn, x_server: int) -> None:
        self._turn = turn
        self._x_server = f"/proc/{x_server}"
        self._call: Holder | None = None
        self._worked_s = 0.0
        self._sleeps = 0

    def look(self) -> str:
        """Return the reason why no call would be answered; empty where there is none."""
        if walls.at_least_run(MOST_RUNNING):
            return f"{MOST_RUNNING} programs computed at once"
        call = self._turn.holder
        if call is None:
            self._call = None
            return ""
        thread = f"/proc/self/task/{call.thread}"
        worked_s = walls.worked_s(self._x_server) + walls.worked_s(thread)
        if call != self._call:
            self._call, self._worked_s, self._sleeps = call, worked_s, 0
            return ""
        self._sleeps = self._sleeps + 1 if {walls.status(self._x_server)[0], walls.status(thread)[0]} == {"S"} else 0
        if worked_s - self._worked_s > MOST_WORK_S:
            return "a program has kept the X server busy"
        return "a program has kept the X server waiting" if self._sleeps >= MOST_SLEEPS else ""
