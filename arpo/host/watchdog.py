"""The end of a run whose driver was killed: a small process of its session, which ends what is left as a start would.

`python -m arpo.host.watchdog DIRECTORY` is started with a session. Its standard input is a pipe from the driver: one
byte says that the session was closed, an end without a byte that the driver is no more.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from arpo.host.processes import is_owner_alive
from arpo.host.session import end_session, reap

LOOK_S = 1.0
"""How often to look for the driver where a child of it, forked and alive, holds the pipe open."""
DYING_S = 0.05
"""How often to look once the pipe has ended: the kernel closes it some moments before the driver is gone."""
PATIENCE_S = 60.0
"""How long to wait for the session's lock: threads of a driver that counts as dead may take a while to be gone."""


def detach() -> None:
    """Become a process without a living parent: no terminal, signal to the driver's group or outer session ends it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")


def outlives(directory: Path, pipe: int) -> bool:
    """Wait for the end of a session or of its driver; return whether the driver died with the session open."""
    has_ended = False
    while True:
        if has_ended:
            time.sleep(DYING_S)
        elif select.select([pipe], [], [], LOOK_S)[0]:
            if os.read(pipe, 1):
                return False
            has_ended = True
        if not is_owner_alive(directory.name):
            return True


def main() -> None:
    """Watch the driver of a session, and end what it leaves."""
    directory = Path(sys.argv[1])
    detach()
    if not outlives(directory, sys.stdin.fileno()):
        return
    deadline = time.monotonic() + PATIENCE_S
    while directory.exists() and time.monotonic() < deadline:
        with suppress(OSError, psutil.Error):  # of processes that go while they are looked at: look again
            end_session(directory)
        time.sleep(DYING_S)
    with suppress(OSError, psutil.Error):  # runs inside this one end with it, and watchdogs that were starting
        reap(directory.parent)


if __name__ == "__main__":
    main()
