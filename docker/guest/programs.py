"""The programs of the desktop: running, launching and ending them, and what they use up."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from interpreter import Interpreter

EXECUTE_TIMEOUT_S = 120.0
"""OSWorld's."""
FIRST_TO_DIE = ("choom", "--adjust", "900", "--")
"""Before every application: where memory runs out, it goes before the X server and this server."""
DISK_RESERVE = 256 * 1024
"""Bytes; with less, applications fail to save and nobody can tell why."""


class Programs:
    """Whatever runs on the desktop besides the X server, the window manager and this server."""

    def __init__(self) -> None:
        self._interpreter: Interpreter | None = None
        self._base = _processes()
        self._launched: list[subprocess.Popen] = []

    def execute(self, command: str | list[str], *, shell: bool, timeout_s: float = EXECUTE_TIMEOUT_S) -> dict:
        """Run a program to its end and return its `output`, `error` and `returncode`."""
        arguments = _arguments(command, shell)
        self._collect()
        if _is_pyautogui(arguments):
            return self._warm_interpreter().run(arguments[2], timeout_s)
        done = subprocess.run(
            [*FIRST_TO_DIE, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd=Path.home(),
            check=False,
        )
        return {"output": done.stdout, "error": done.stderr, "returncode": done.returncode}

    @property
    def warm(self) -> bool:
        """Whether programs that use PyAutoGUI start at once."""
        return self._interpreter is not None and self._interpreter.ready

    def _warm_interpreter(self) -> Interpreter:
        """Return it, from the first program on: most desktops never have one."""
        if self._interpreter is None or not self._interpreter.alive:
            self._interpreter = Interpreter()
            self._base.add(self._interpreter.pid)
        return self._interpreter

    def launch(self, command: str | list[str], *, shell: bool) -> None:
        """Start a program and leave it running."""
        quiet = subprocess.DEVNULL
        arguments = [*FIRST_TO_DIE, *_arguments(command, shell)]
        self._launched.append(
            subprocess.Popen(
                arguments, stdin=quiet, stdout=quiet, stderr=quiet, cwd=Path.home(), start_new_session=True
            )
        )

    def _collect(self) -> None:
        """Let go of launched programs that have ended: until then, `pgrep` finds them."""
        self._launched = [process for process in self._launched if process.poll() is None]

    def end_all(self) -> None:
        """Kill every process of this user that was not there when the desktop was new."""
        while strangers := _processes() - self._base:
            for pid in strangers:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._launched:
                process.wait()
            self._launched.clear()
            time.sleep(0.005)


def troubles(killed_before: int) -> list[str]:
    """Return what makes this desktop worthless: no room in the home directory, or programs killed for memory.

    Args:
        killed_before: What `killed_for_memory` gave when the episode began.
    """
    found = []
    free = os.statvfs(Path.home())
    if free.f_bavail * free.f_frsize < DISK_RESERVE:
        found.append("the home directory is full")
    killed = killed_for_memory() - killed_before
    if killed:
        found.append(f"{killed} processes were killed because memory ran out")
    return found


def killed_for_memory() -> int:
    """Return how many processes of this container the kernel has killed so far; both versions of cgroups know."""
    for counters in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with suppress(OSError):
            for line in Path(counters).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _arguments(command: str | list[str], shell: bool) -> list[str]:
    if shell:
        return ["/bin/sh", "-c", command if isinstance(command, str) else " ".join(command)]
    words = shlex.split(command) if isinstance(command, str) else list(command)
    words = [os.path.expanduser(word) if word.startswith("~/") else word for word in words]
    if not words or shutil.which(words[0]) is None:  # `choom` would make it the exit status of a program
        raise FileNotFoundError(f"there is no program {words[0] if words else ''!r}")
    return words


def _is_pyautogui(arguments: list[str]) -> bool:
    return (
        len(arguments) == 3
        and arguments[0] in ("python", "python3", sys.executable)
        and arguments[1] == "-c"
        and "pyautogui" in arguments[2]
    )


def anything_runs() -> bool:
    """Say whether a process of this user, other than this one, computes, waits for a core, or for a disk."""
    return any(pid != os.getpid() and state in "RD" for pid, state in _states())


def _processes() -> set[int]:
    """Return the processes of this user; the dead that nobody has collected yet do not count."""
    return {pid for pid, state in _states() if state not in "ZX"}


def _states() -> Iterator[tuple[int, str]]:
    """Yield id and state of the processes of this user."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # it ended while we looked
                if entry.stat().st_uid == os.getuid():
                    yield int(entry.name), Path(entry.path, "stat").read_text().rpartition(") ")[2][0]
