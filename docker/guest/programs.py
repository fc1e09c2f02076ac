"""The programs of the desktop: running and launching them, and what they use up."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import walls
from interpreter import LARGEST_OUTPUT, Interpreter
from judge import FIRST_GROUP, FOLDER, Judge, rights
from stillness import STILLNESS, RestlessError, doings

EXECUTE_TIMEOUT_S = 120.0
"""OSWorld's."""
OWN_WORK_S = 1.0
"""Processor time of the whole desktop by which a program that does not end has had its chance: if others of the
desktop took that time, the machine is not to blame."""
ALONE_S, SETTLES_S = 1.0, 0.005
"""For so long a program of a check has the desktop for itself; then it may be waiting for another one."""
COLLECT_S = 2.0
"""After which a process that was killed is left to its tracer."""
DISK_RESERVE = 256 * 1024
"""Bytes; with less, applications fail to save without a reason."""


class TooSlowError(Exception):
    """Raised on a program that was not done in time, as it waited for this machine."""


class HangingError(Exception):
    """Raised on a program that was not done in time, as it waits for something that does not come, or never stops."""


class Programs:
    """Whatever runs on the desktop besides X server and window manager.

    Args:
        judge: Says whether programs are those of checks now, which no other program may touch.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._interpreter: Interpreter | None = None
        self._launched: list[subprocess.Popen] = []

    def execute(
        self, command: str | list[str], *, shell: bool, timeout_s: float = EXECUTE_TIMEOUT_S, alone: bool = True
    ) -> dict:
        """Run a program to its end and return its `output`, `error` and `returncode`.

        Args:
            command: A line, or words.
            shell: Whether it is for a shell.
            timeout_s: For so long.
            alone: Whether the desktop stands still at first, if this is a program of a check.

        Raises:
            HangingError, TooSlowError: If it does not end in time; it is killed then.
            HangingError: If a signal ends a program of a check.
        """
        arguments, group = _arguments(self._judge.rewritten(command), shell), self._judge.group()
        timeout_s = self._judge.patience_s(timeout_s)
        self._collect()
        if _is_pyautogui(arguments):
            try:
                return self._warm_interpreter().run(arguments[2], timeout_s, group)
            except TimeoutError as error:  # a program has grabbed the X server
                raise HangingError(str(error)) from error
        try:
            with _alone() if alone and group is not None else nullcontext():
                done = self._run(command, arguments, group, timeout_s)
        except RestlessError as error:
            raise HangingError(str(error)) from error
        if group is not None and done["returncode"] < 0:  # its answer is lost
            raise HangingError(f"{command!r} was ended by signal {-done['returncode']}")
        return done

    def _run(self, command: str | list[str], arguments: list[str], group: int | None, timeout_s: float) -> dict:
        pipe = subprocess.PIPE
        began, worked_s = time.monotonic(), _worked_s()
        process = subprocess.Popen(
            _at_home(arguments, group), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )

        def waits_for_machine() -> bool:
            return _worked_s() - worked_s <= OWN_WORK_S and _waits_for_machine(process.pid)

        try:
            output, error = _read(process, began + timeout_s, lambda: self._judge.starves(began, waits_for_machine))
        except (TimeoutError, subprocess.TimeoutExpired):
            error = TooSlowError if waits_for_machine() else HangingError
            raise error(f"{command!r} did not end within {time.monotonic() - began:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(COLLECT_S)
            process.stdout.close()
            process.stderr.close()
        return {"output": output, "error": error, "returncode": process.returncode}

    @property
    def warm(self) -> bool:
        """Whether programs that use PyAutoGUI start at once."""
        return self._interpreter is not None and self._interpreter.ready

    def _warm_interpreter(self) -> Interpreter:
        """Return it, from the first program on: most desktops never have one."""
        if self._interpreter is None or self._interpreter.gone:
            self._interpreter = Interpreter()
        return self._interpreter

    def launch(self, command: str | list[str], *, shell: bool) -> None:
        """Start a program and leave it running."""
        quiet = subprocess.DEVNULL
        arguments = _at_home(_arguments(self._judge.rewritten(command), shell), self._judge.group())
        self._collect()
        self._launched.append(
            subprocess.Popen(arguments, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        )

    def _collect(self) -> None:
        """Let go of launched programs that have ended: until then, `pgrep` finds them."""
        self._launched = [process for process in self._launched if process.poll() is None]


@contextmanager
def _alone() -> Iterator[None]:
    """Stop the programs of the desktop for a while.

    Raises:
        RestlessError: If they do not stand still.
    """
    end = STILLNESS.begin()
    timer = threading.Timer(ALONE_S, end)
    timer.start()
    try:
        time.sleep(SETTLES_S)
        before = doings(FIRST_GROUP)
        yield
        if timer.is_alive() and any(before.get(each) != now for each, now in doings(FIRST_GROUP).items()):
            raise RestlessError("a program of the desktop went on while it was to stand still")
    finally:
        timer.cancel()
        end()


def _at_home(arguments: list[str], group: int | None) -> list[str]:
    # The user goes there: this server may not, once the user has locked it; then the program runs elsewhere.
    go = 'cd "$HOME" 2>/dev/null; exec "$@"'
    return [*rights(group), "sh", "-c", go, "sh", *arguments]


def _read(process: subprocess.Popen, deadline: float, gets_more_time: Callable[[], bool]) -> tuple[str, str]:
    """Return the output of a process until it closes both of its streams; one that writes too much is killed.

    Raises:
        TimeoutError: At the deadline, or later where it `gets_more_time`.
    """
    written = {process.stdout: bytearray(), process.stderr: bytearray()}
    with DefaultSelector() as open_streams:
        for stream in written:
            open_streams.register(stream, EVENT_READ)
        while open_streams.get_map():
            if (left_s := deadline - time.monotonic()) <= 0:
                if not gets_more_time():
                    raise TimeoutError
                left_s = 0.5
            for key, _ in open_streams.select(left_s):
                chunk = os.read(key.fd, 65536)
                written[key.fileobj] += chunk
                if not chunk:
                    open_streams.unregister(key.fileobj)
                if len(written[key.fileobj]) > LARGEST_OUTPUT:
                    os.killpg(process.pid, signal.SIGKILL)
                    open_streams.unregister(key.fileobj)
        process.wait(max(0.0, deadline - time.monotonic()) + 1.0)
    return tuple(bytes(each[:LARGEST_OUTPUT]).decode(errors="replace") for each in written.values())


def _waits_for_machine(session: int) -> bool:
    """Say whether a process of a session waits for a core or a disk.

    One that has begun another with `vfork` looks like one that waits for a disk, until that has become a program: a
    program of the agent may stop it just before, and hold both for ever.
    """
    waiting, parents = set(), set()
    for pid, _, _ in walls.processes():
        with suppress(OSError):
            state, parent, _, own_session = walls.status(f"/proc/{pid}")[:4]
            parents.add(int(parent))
            if int(own_session) == session and state in "RD":
                waiting.add((pid, state))
    return any(state == "R" or pid not in parents for pid, state in waiting)


def _worked_s() -> float:
    """Return the seconds of a core that all processes of this container have had; both versions of cgroups count."""
    with suppress(OSError):
        return int(Path("/sys/fs/cgroup/cpuacct/cpuacct.usage").read_text()) / 1e9
    return _counter("usage_usec", "cpu.stat") / 1e6


def troubles(before: dict[str, int]) -> list[str]:
    """Return the deed of programs that makes their desktop worthless: they used up its disk, memory or processes.

    Args:
        before: What `refused` gave when the episode began.
    """
    found = []
    free = os.statvfs(Path.home())
    if free.f_bavail * free.f_frsize < DISK_RESERVE:
        found.append("the home directory is full")
    since = {what: number - before[what] for what, number in refused().items()}
    if since["oom_kill"]:
        found.append(f"{since['oom_kill']} processes were killed because memory ran out")
    if since["max"]:
        found.append("it had as many processes as it may have")
    return found


def refused() -> dict[str, int]:
    """Count how often the kernel has killed a process of this container for memory (`oom_kill`), and how often it
    has refused to make one (`max`); both versions of cgroups count."""
    return {
        "oom_kill": _counter("oom_kill", "memory.events", "memory/memory.oom_control"),
        "max": _counter("max", "pids.events", "pids/pids.events"),
    }


def _counter(wanted: str, *files: str) -> int:
    for file in files:
        with suppress(OSError):
            for line in Path("/sys/fs/cgroup", file).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == wanted:
                    return int(value)
    return 0


def _arguments(command: str | list[str], shell: bool) -> list[str]:
    if shell:
        return ["/bin/sh", "-c", command if isinstance(command, str) else " ".join(command)]
    words = shlex.split(command) if isinstance(command, str) else list(command)
    words = [os.path.expanduser(word) if word.startswith("~/") else word for word in words]
    if not words or not _exists(words[0]):  # `env` would make it the exit status of a program
        raise FileNotFoundError(f"there is no program {words[0] if words else ''!r}")
    return words


def _exists(program: str) -> bool:
    if "/" not in program or program.startswith(str(FOLDER)):
        return shutil.which(program) is not None
    with walls.files_of(walls.USER):
        return os.path.exists(os.path.join(Path.home(), program))


def _is_pyautogui(arguments: list[str]) -> bool:
    return (
        len(arguments) == 3
        and arguments[0] in ("python", "python3", sys.executable)
        and arguments[1] == "-c"
        and "pyautogui" in arguments[2]
    )
