"""Cells: containers in which code looks at what an agent has made, and where nothing is to be had.

A cell has no network, no right, no file of this machine but programs that it may read, and a scratch folder in memory.
Its process (`cell_main.py`) judges once at a time, in a process that is ended after it with everything that it began.
"""

import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

from arpo.errors import EnvError
from arpo.host.cell_main import JUDGE, LONGEST_REPLY, SCRATCH, SHARED, carry_both_ways, receive_message, send_message
from arpo.host.container_spec import ContainerSpec, Scratch
from arpo.host.containers import Container, Containers
from arpo.host.threads import DaemonThread

log = logging.getLogger(__name__)

MAIN = Path(__file__).parent / "cell_main.py"
IMAGE = "arpo/cell:1"
"""An image with nothing in it, which is made when it is not there: what a cell reads is mounted."""
SYSTEM = tuple(
    map(Path, ("/usr", "/lib", "/lib64", "/bin", "/etc/alternatives", "/etc/ld.so.cache", "/sbin/ldconfig"))
)
"""What programs of this machine need, where it is there; the last two say where libraries are."""
OWN = "/own"
"""A folder of the first process alone: what libraries compile, it reads again."""
SYSCTLS = {"kernel.shm_rmid_forced": "1", "kernel.shmall": "4096", "kernel.msgmni": "16", "kernel.sem": "32 128 32 4"}
"""Memory, queues and semaphores that outlive a process take no room."""
START_S = 60.0
MOST_CONNECTIONS, MOST_BYTES = 64, 2**29
"""Of one judgement through the door."""

Doors = Mapping[str, tuple[int, Callable[[], socket.socket]]]
"""The servers of a guest that a judgement may reach, by name: its port in the cell, and what connects to it."""
Files = Mapping[str, bytes | Path]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs in a cell."""

    python: Path
    """Its interpreter, mounted with its environment."""
    judge: Path
    """The file with `prepare` and `judge`, see `cell_main.py`."""
    folders: tuple[Path, ...] = ()
    """Folders that it reads besides."""
    memory_mb: int = 1024
    """MiB that a cell may use, its files included."""
    cpu_s: float = 20.0
    """Seconds of a core for one judgement; what needs more was made to need it."""
    wall_s: float = 60.0
    """Seconds for one judgement."""

    def spec(self, sockets: Path) -> ContainerSpec:
        """Return the container of a cell whose sockets are in a folder."""
        real = self.python.resolve()
        read = [*SYSTEM, self.python.parent.parent.absolute(), MAIN.parent, self.judge.parent, *self.folders]
        if not real.is_relative_to("/usr"):
            read.append(real.parent.parent)
        mine = {name: value for name, value in os.environ.items() if name.startswith("OPENBLAS_")}
        return ContainerSpec(
            IMAGE,
            ports=(),
            environment=mine
            | dict.fromkeys(("HOME", "TMPDIR", "TLDEXTRACT_CACHE"), SCRATCH)
            | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"), "1")
            | {"NUMBA_CACHE_DIR": OWN, "PATH": "/usr/bin:/bin", "TZ": "UTC", "LANG": "C.UTF-8", "USER": "judge"},
            capabilities=("KILL", "SETGID", "SETUID"),
            memory_mb=self.memory_mb,
            processes=128,
            scratch={
                SCRATCH: Scratch(self.memory_mb // 2, JUDGE, ",mode=0755"),
                SHARED: Scratch(16, JUDGE, ",mode=0700"),
                OWN: Scratch(16, options=",mode=0700"),
            },
            sysctls=SYSCTLS,
            volumes=(*(f"{each}:{each}:ro" for each in dict.fromkeys(read) if each.exists()), f"{sockets}:/cell:ro"),
            command=(str(self.python.absolute()), "-I", "-X", "utf8", str(MAIN), str(self.judge)),
            network=False,
        )


def of_this_package(judge: Path, **limits: Any) -> Program:
    """Return a program that runs a file of this package, in this environment."""
    return Program(Path(sys.executable), judge, (Path(__file__).parents[1],), **limits)


class CellDiedError(Exception):
    """Raised when a cell ends in the middle of a judgement."""


class Cell:
    """One cell, with one judgement at a time; its constructor raises `EnvError` if it does not start."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._containers = Containers()
        self._container: Container | None = None
        self._control: socket.socket | None = None
        self._home = Path(tempfile.mkdtemp(prefix="arpo-cell-"))  # closed to all others of this machine
        self._sockets = self._home / "sockets"
        self._sockets.mkdir()
        self._sockets.chmod(0o755)
        self._door = _Door(self._listen("door"))
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def judge(self, request: Mapping[str, Any], files: Files, doors: Doors) -> dict[str, Any]:
        """Return the `reply` of a judgement, or how it `ended` without one, and whether it was `starved`.

        Args:
            request: What its program is asked.
            files: What it finds in its directory, by name.
            doors: The servers that it may reach.

        Raises:
            CellDiedError: If the cell ends before.
        """
        assert self._control is not None
        sizes = [(name, len(each) if isinstance(each, bytes) else each.stat().st_size) for name, each in files.items()]
        ports = {name: port for name, (port, _) in doors.items()}
        limits = {"cpu_s": self._program.cpu_s, "wall_s": self._program.wall_s}
        self._control.settimeout(self._program.wall_s + START_S)
        try:
            with self._door.open(doors):
                send_message(self._control, {"request": request, "files": sizes, "doors": ports, **limits})
                for each in files.values():
                    if isinstance(each, bytes):
                        self._control.sendall(each)
                    else:
                        with each.open("rb") as file:
                            self._control.sendfile(file)
                return cast(dict[str, Any], receive_message(self._control, 2 * LONGEST_REPLY))
        except (OSError, EOFError, ValueError) as error:
            raise CellDiedError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Remove it; idempotent."""
        if self._control is not None:
            self._control.close()
        self._door.close()
        container, self._container = self._container, None
        if container is not None:
            self._containers.remove(container)
        self._containers.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _listen(self, name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        folder = os.open(self._sockets, os.O_PATH)  # the address of a socket has 107 bytes, and its path may have more
        listener.bind(f"/proc/self/fd/{folder}/{name}")
        os.close(folder)
        (self._sockets / name).chmod(0o666)
        listener.listen(MOST_CONNECTIONS)
        return listener

    def _begin(self) -> None:
        self._containers.make_empty_image(IMAGE)
        with self._listen("control") as listener:
            listener.settimeout(0.5)
            self._container = self._containers.start(self._program.spec(self._sockets))
            deadline = time.monotonic() + START_S
            while self._control is None:
                with suppress(TimeoutError):
                    self._control, _ = listener.accept()
                if self._control is None and not (time.monotonic() < deadline and self._container.is_running()):
                    raise EnvError("evaluate", f"no cell to judge in has come up: {self._container.last_words()}")


class _Door:
    """The way out of a cell: to the servers of one guest, and only while something is judged."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._doors: Doors = {}
        self._bytes_left = 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True, name="cell door").start()

    @contextmanager
    def open(self, doors: Doors) -> Iterator[None]:
        """Let connections through, and end them all in the end."""
        self._doors, self._bytes_left = doors, MOST_BYTES
        try:
            yield
        finally:
            self._doors = {}
            for each in list(self._open):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                if len(self._open) >= MOST_CONNECTIONS:
                    connection.close()
                    continue
                self._open.add(connection)
                threading.Thread(target=self._lead, args=(connection,), daemon=True, name="cell door").start()

    def _lead(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EnvError, KeyError):
            connection.settimeout(START_S)
            name = b""
            while not name.endswith(b"\n") and len(name) < 64:
                name += connection.recv(1) or b"\n"
            _, connect = self._doors[name.decode(errors="replace").strip()]
            with connect() as guest:
                for each in (connection, guest):
                    each.settimeout(None)
                carry_both_ways(connection, guest, self._count)
        self._open.discard(connection)

    def _count(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise OSError("a judgement reads no more than that")


class Cells:
    """The cells of one program in this process, shared by its environments; one is ready in advance.

    A cell that dies in a judgement is replaced, and the judgement made again; what ends two cells is no chance.
    """

    _all: ClassVar[dict[Program, "Cells"]] = {}
    _lock = threading.RLock()

    def __init__(self, program: Program) -> None:
        self._program = program
        self._users = 0
        self._idle: list[Cell] = []
        self._first: Future[Cell] | None = None

    @classmethod
    def of(cls, program: Program) -> "Cells":
        """Return the cells of a program, for one more environment, which is to `leave` when it closes."""
        with cls._lock:
            cells = cls._all.setdefault(program, cls(program))
            cells._users += 1
            if cells._first is None:
                thread = DaemonThread("cell")
                cells._first = cast("Future[Cell]", thread.submit(partial(Cell, program)))
                thread.stop()
                cells._first.add_done_callback(cells._welcome)
        return cells

    def wait_until_ready(self) -> None:
        """Wait for the first cell."""
        assert self._first is not None
        self._first.result()

    def leave(self) -> None:
        """Note that an environment has closed; with the last one, the cells are removed."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            self._all.pop(self._program, None)
            idle, self._idle = self._idle, []
        for cell in idle:
            cell.close()

    def judge(self, request: Mapping[str, Any], files: Files, doors: Doors) -> dict[str, Any]:
        """Return the outcome of a judgement in a free cell, or in a new one; see `Cell.judge`."""
        for _ in range(2):
            with self._lock:
                cell = self._idle.pop() if self._idle else None
            cell = cell or Cell(self._program)
            try:
                outcome = cell.judge(request, files, doors)
            except CellDiedError as error:
                log.warning("a cell has died in a judgement: %s", error)
                outcome = {"ended": f"two cells, one after the other: {error}", "starved": False}
                cell.close()
            except BaseException:
                cell.close()
                raise
            else:
                cell.close() if outcome.get("spent") else self._give(cell)
                break
        return outcome

    def _welcome(self, first: "Future[Cell]") -> None:
        if first.exception() is None:
            self._give(first.result())

    def _give(self, cell: Cell) -> None:
        with self._lock:
            if self._users > 0:
                self._idle.append(cell)
                return
        cell.close()
