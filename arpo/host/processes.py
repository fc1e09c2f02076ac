"""The processes of this machine: finding those that carry a label, ending them, and naming one for good."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

LABEL_VARIABLE = "ARPO_SESSION"
DIRECTORY_VARIABLE = "ARPO_SESSION_DIR"
TERMINATE_GRACE_S = 2.0
KILL_GRACE_S = 5.0
SWEEPS = 3
"""The number of searches for processes: some may be born while others end."""


def session_directory() -> Path | None:
    """Return the directory of the session that this process runs in, None outside of a session."""
    value = os.environ.get(DIRECTORY_VARIABLE)
    return Path(value) if value else None


def process_tag() -> str:
    """Return a name that no other process of this machine ever has: the id of this one, and when it began."""
    return f"{os.getpid()}-{_life(os.getpid())[1]}"


def is_owner_alive(name: str) -> bool:
    """Return whether the process of a name lives, and is no zombie; of other forms, or hidden, it counts as alive."""
    pid, _, started = name.partition("-")
    if not (pid.isdecimal() and started.isdecimal()):
        return True  # not one of ours: leave it alone
    try:
        ended, began = _life(int(pid))
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return not ended and began == int(started)


def _life(pid: int) -> tuple[bool, int]:
    """Return whether a process has ended, and when it began, in ticks since the boot: a clock may be set."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace", encoding="utf-8").rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    except OSError:
        raise psutil.AccessDenied(pid) from None
    return fields[0] in "ZX", int(fields[19])  # fields 3 and 22; the second, a name, may hold anything


def end_processes(
    label: str, directory: Path | None = None, variable: str = LABEL_VARIABLE, *, place: Path | None = None
) -> int:
    """End every process with a label, those that write below a directory and those that work in a place.

    First politely; return their number.
    """
    ended: set[int] = set()
    for _ in range(SWEEPS):
        found = _marked_processes(variable, label, directory, place)
        if not found:
            break
        ended.update(process.pid for process in found)
        _signal(found, signal.SIGTERM)
        stubborn = _still_running(found, within_s=TERMINATE_GRACE_S)
        _signal(stubborn, signal.SIGKILL)
        _still_running(stubborn, within_s=KILL_GRACE_S)
    return len(ended)


def count_processes(label: str, directory: Path | None = None, variable: str = LABEL_VARIABLE) -> int:
    """Count the processes that `end_processes` would end now."""
    return len(_marked_processes(variable, label, directory))


def _marked_processes(
    variable: str, label: str, directory: Path | None, place: Path | None = None
) -> list[psutil.Process]:
    """Find the processes of a label with their descendants, without this process and its ancestors."""
    myself = psutil.Process()
    spared = {myself.pid, *(parent.pid for parent in myself.parents())}
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it ended while we looked, or works in a place with too long a name
            ours = process.uids().real == os.getuid() and process.status() != psutil.STATUS_ZOMBIE
            if process.pid in spared or not ours:
                continue
            marked = process.environ().get(variable) == label or _writes_below(process, directory)
            if marked or (place is not None and Path(process.cwd()).is_relative_to(place)):
                found.update((member.pid, member) for member in (process, *process.children(recursive=True)))
    return [process for pid, process in found.items() if pid not in spared]


def _writes_below(process: psutil.Process, directory: Path | None) -> bool:
    return directory is not None and any(
        file.mode != "r" and Path(file.path).is_relative_to(directory) for file in process.open_files()
    )


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _still_running(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Wait for processes to end and return those that did not; a zombie has ended."""
    deadline = time.monotonic() + within_s
    alive = list(processes)
    while True:
        running, waiting = alive, []
        for process in running:
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    waiting.append(process)
        alive = waiting
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.02)
