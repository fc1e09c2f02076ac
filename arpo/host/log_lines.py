"""The lines of the log: none forges another, whatever it quotes, and a busy program writes one now and then."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from typing_extensions import override

from arpo.errors import quoted

log = logging.getLogger(__name__)

LONGEST_RECORD = 2**16
"""Characters of a record of the log, such as a traceback or a table."""
HEARTBEAT_S = 10.0


class LineFormatter(logging.Formatter):
    """A formatter of the log, in which a record begins at the margin and its further lines do not."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return quoted(super().format(record), most=LONGEST_RECORD, keep="\n\t").replace("\n", "\n  ")


def log_to_terminal(level: int = logging.INFO) -> None:
    """Show the log of a command that is no run: the messages alone."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class Heartbeat:
    """A thread that logs a line whenever a while has passed without one; use `with`, or `start` and `stop`."""

    def __init__(self, line: Callable[[], str], every_s: float = HEARTBEAT_S) -> None:
        """Prepare the thread, which calls `line` for the line of the moment; nothing is logged before `start`."""
        self._line = line
        self.every_s = every_s
        self._stopped = threading.Event()
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Count the silence from now until `stop`."""
        self._last = time.monotonic()
        self._thread.start()

    def say(self, line: str) -> None:
        """Log a line, and count the silence anew."""
        self._last = time.monotonic()
        log.info("%s", line)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped.wait(max(0.0, self._last + self.every_s - time.monotonic())):
            if time.monotonic() - self._last >= self.every_s:
                self.say(self._line())


def log_every(what: str, every_s: float = HEARTBEAT_S) -> Heartbeat:
    """Return a heartbeat that logs what goes on and for how long, such as "starting the engine: 20 s so far"."""
    started = time.monotonic()
    return Heartbeat(lambda: f"{what}: {time.monotonic() - started:.0f} s so far", every_s)
