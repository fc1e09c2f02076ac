"""The first process of a cell: it runs one judgement after the other, each in a process without rights, and cleans up.

    python3 -I cell_main.py JUDGE.py

`JUDGE.py` has `prepare(request)`, which imports what a request needs, before anything of an agent's is there, and
`judge(request, directory, foreign)`, which returns the reply. Where `prepare` returns a file, that runs as one more
process of another user, with the other end of the connection `foreign` and the directory: for code of an agent. It
begins with an empty memory, and the cell ends after it. The trainer is at the socket `/cell/control`; `/cell/door`
leads to the servers of the guest that is judged.

Nothing of ARPO is imported here.
"""

import ctypes
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

CONTROL, DOOR = "/cell/control", "/cell/door"
SCRATCH, SHARED = "/scratch", "/dev/shm"
"""The two folders that may be written, of the user JUDGE."""
JUDGE, FOREIGN = 65533, 65532
"""Users: of judgements, and of the code of agents."""
LONGEST_REPLY = 65536
CHUNK = 2**16
_PR_SET_DUMPABLE = 4
_LIBC = ctypes.CDLL(None)


def send_message(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send a message: its length in eight bytes, and JSON."""
    content = json.dumps(message).encode()
    connection.sendall(len(content).to_bytes(8, "big") + content)


def receive_message(connection: socket.socket, longest: int) -> Any:
    """Return the next message."""
    if (size := int.from_bytes(b"".join(receive(connection, 8)), "big")) > longest:
        raise ValueError(f"a message of {size} bytes")
    return json.loads(b"".join(receive(connection, size)))


def receive(connection: socket.socket, size: int) -> Iterator[bytes]:
    """Yield so many bytes in pieces."""
    while size:
        if not (chunk := connection.recv(min(size, CHUNK))):
            raise EOFError("the connection has ended")
        size -= len(chunk)
        yield chunk


def carry_both_ways(
    one: socket.socket, other: socket.socket, on_bytes: Callable[[int], object] = lambda _: None
) -> None:
    """Carry bytes between two connections until one of them ends."""
    back = threading.Thread(target=_carry, args=(other, one, on_bytes), daemon=True)
    back.start()
    _carry(one, other, on_bytes)
    back.join()


def _carry(source: socket.socket, sink: socket.socket, on_bytes: Callable[[int], object]) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            on_bytes(len(data))
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def serve(judge: ModuleType, control: socket.socket) -> None:
    """Run judgements until the trainer ends the connection."""
    while True:
        try:
            order = receive_message(control, sys.maxsize)
        except EOFError:
            return
        reply = _judged(judge, order, control)
        _end_everything()
        send_message(control, reply)


def _judged(judge: ModuleType, order: Mapping[str, Any], control: socket.socket) -> dict[str, Any]:
    """Return the reply of a judgement, or its end without one."""
    foreign = judge.prepare(order["request"])
    read, write = os.pipe()
    ours, theirs = socket.socketpair()
    began = time.monotonic()
    if (pid := os.fork()) == 0:
        with _process_of(JUDGE, order["cpu_s"]):
            theirs.close()
            directory = _unpack(order["files"], control)
            control.close()
            for name, port in order["doors"].items():
                _open_door(name, port)
            reply = json.dumps(judge.judge(order["request"], directory, ours)).encode()
            os.write(write, reply[:LONGEST_REPLY])
    if foreign is not None and os.fork() == 0:
        with _process_of(FOREIGN, order["cpu_s"]):
            theirs.set_inheritable(True)
            os.execv(sys.executable, [sys.executable, "-I", foreign, str(theirs.fileno()), f"{SCRATCH}/files"])
    for each in (write, ours.detach(), theirs.detach()):
        os.close(each)
    waited_s: list[float] = []

    def end() -> None:
        waited_s.append(_waited_s(pid))
        os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(order["wall_s"], end)
    timer.start()
    _, status, used = os.wait4(pid, 0)
    timer.cancel()
    os.set_blocking(read, False)  # what the judgement began may still hold the other end
    with os.fdopen(read, "rb") as replies:
        said = replies.read(LONGEST_REPLY)
    if said and status == 0:
        return {"reply": json.loads(said), "spent": foreign is not None}
    passed_s, worked_s = time.monotonic() - began, used.ru_utime + used.ru_stime
    ended = f"status {os.waitstatus_to_exitcode(status)} after {passed_s:.1f} s, {worked_s:.1f} s of them with a core"
    starved = foreign is None and sum(waited_s) > order["wall_s"] / 2
    return {"ended": ended, "starved": starved, "spent": foreign is not None}


def _waited_s(pid: int) -> float:
    """Return for how long a process has waited for a core: the machine's doing, and nothing that it looks at."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


@contextmanager
def _process_of(user: int, cpu_s: float) -> Iterator[None]:
    """Make this process, which has been forked, one of another user, and end it here, whatever happens."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # it goes before the one that cleans up
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        _LIBC.prctl(_PR_SET_DUMPABLE, int(user == JUDGE), 0, 0, 0)  # libraries look at themselves
        yield
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        os._exit(1)


def _unpack(files: Iterable[tuple[str, int]], control: socket.socket) -> str:
    """Write the files that follow a message into a new directory, and return it."""
    directory = Path(SCRATCH, "files")
    directory.mkdir()
    for name, size in files:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        with (directory / name).open("wb") as file:
            file.writelines(receive(control, size))
        (directory / name).chmod(0o600)  # code of an agent, another user's, learns nothing from it
    os.chdir(directory)
    return str(directory)


def _open_door(name: str, port: int) -> None:
    """Let a server of the guest be reached at a port of this machine, which has no network."""
    listener = socket.create_server(("127.0.0.1", port))

    def accept() -> None:
        while True:
            threading.Thread(target=_lead, args=(listener.accept()[0], name), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _lead(connection: socket.socket, name: str) -> None:
    with connection, socket.socket(socket.AF_UNIX) as door, suppress(OSError):
        door.connect(DOOR)
        door.sendall(f"{name}\n".encode())
        carry_both_ways(connection, door)


def _end_everything() -> None:
    """End every other process of the cell but the first, and remove what they have written."""
    with suppress(ChildProcessError):
        while True:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.001)
    if (pid := os.fork()) == 0:  # the files are another user's
        with _process_of(JUDGE, 60.0):
            os.execv("/usr/bin/find", ["find", SCRATCH, SHARED, "-mindepth", "1", "-delete"])
    os.waitpid(pid, 0)


def load(path: str) -> ModuleType:
    """Return the module of a file."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Connect to the trainer and serve it."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    judge = load(sys.argv[1])
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(CONTROL)
        serve(judge, control)


if __name__ == "__main__":
    main()
