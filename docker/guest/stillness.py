"""Programs of the user that stand still while something is judged: what does not run can send no signal and take no
connection."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import walls

STILL = "TtZXD"
"""States of threads that run nothing of their program."""
LIMIT_S = 2.0


class RestlessError(Exception):
    """Raised when programs do not stand still, for they make each other go on."""


class _Stillness:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._askers = 0
        self._stopped: set[int] = set()

    def begin(self, goes_on: Callable[[int], bool] = lambda _: False) -> Callable[[], None]:
        """Stop the programs of the user, and return how to let them go on when no other caller needs them still.

        Args:
            goes_on: Says of a process whether it is left alone.

        Raises:
            RestlessError: If they cannot be stopped.
        """
        only_once = threading.Lock()

        def end() -> None:
            if only_once.acquire(blocking=False):
                self._leave()

        with self._lock:
            self._askers += 1
        try:
            self._stop(goes_on)
        except BaseException:
            end()
            raise
        return end

    def _stop(self, goes_on: Callable[[int], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while moving := [pid for pid, _, _ in walls.processes((walls.USER.pw_uid,)) if _moves(pid)]:
            if not (moving := [pid for pid in moving if not goes_on(pid)]):
                return
            if time.monotonic() > deadline:
                raise RestlessError("the programs of the desktop do not stand still")
            with self._lock:
                for pid in moving:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP)
                        self._stopped.add(pid)
            time.sleep(0.002)

    def _leave(self) -> None:
        with self._lock:
            self._askers -= 1
            while self._stopped and not self._askers:
                with suppress(ProcessLookupError):
                    os.kill(self._stopped.pop(), signal.SIGCONT)


STILLNESS = _Stillness()


def doings(group: int) -> dict[str, list[str]]:
    """Count how often each thread of the user has gone on so far, but for those of groups from this one on.

    A timer of the kernel may let a program go on that stands still, and stop again before anyone looks.
    """
    found = {}
    for pid, _, _ in walls.processes((walls.USER.pw_uid,)):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_gid < group:
                for thread in os.scandir(f"/proc/{pid}/task"):
                    found[thread.path] = Path(thread.path, "status").read_text(errors="replace").splitlines()[-2:]
    return found


def _moves(pid: int) -> bool:
    with suppress(OSError):
        return any(walls.status(thread.path)[0] not in STILL for thread in os.scandir(f"/proc/{pid}/task"))
    return False
