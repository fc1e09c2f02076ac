"""The watchdogs of sessions, and waiting for what they do."""

import os
import time
from contextlib import suppress

import psutil


def runs(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def kill(process):
    process.kill()
    process.wait()


def wait_until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def watchdogs(root):
    """The processes that watch sessions under this root."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if "arpo.host.watchdog" in command and command[-1].startswith(str(root)) and runs(process.pid):
                found.append(process)
    return found


def detached(root):
    """The watchdogs that have begun: nobody's children, in a terminal session that their first process has left."""
    found = []
    for watchdog in watchdogs(root):
        with suppress(ProcessLookupError):
            if os.getsid(watchdog.pid) not in (os.getsid(0), watchdog.pid):
                found.append(watchdog)
    return found


def end_watchdogs(root, count=1):
    wait_until(lambda: len(detached(root)) == count)
    for watchdog in detached(root):
        watchdog.kill()
    wait_until(lambda: not watchdogs(root))
