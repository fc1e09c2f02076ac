"""Headless Chromium over its debugging pipe: one browser a process, one tab an environment, any number of threads.

The DevTools protocol is spoken over the two pipes of `--remote-debugging-pipe`: no driver process, no port, and a
browser that exits by itself when the process at the other end is gone, however it died. A reader thread completes
futures; every thread that owns a tab writes its own commands and waits for its own answers.
"""

import fcntl
import itertools
import json
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from arpo.envs.answers import decoded
from arpo.errors import EnvError

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 3.0
LARGEST_MESSAGE = 16 * 2**20
"""Bytes of one message of the browser; a screenshot travels as text, and makes it a third longer."""
NOTHING = msgspec.Raw(b"{}")
ABSENT = msgspec.Raw(b"")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root in a container has no user namespaces; the pages are local files
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--process-per-site",  # the tabs share renderers: 10 MB a tab instead of 60
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--disable-hang-monitor",
    "--disable-ipc-flooding-protection",
    "--disable-smooth-scrolling",
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--disable-breakpad",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--mute-audio",
    "--disable-partial-raster",  # a repainted corner differs from a first painted one by one grey level
    "--allow-file-access-from-files",  # the page script reads the linked style sheets
    "--lang=en-US",
    # Nothing leaves this machine: no name resolves, and every connection goes to a closed port.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--disable-features=Translate,MediaRouter,OptimizationHints,PaintHolding,CalculateNativeWinOcclusion",
)


class ChromiumError(RuntimeError):
    """Raised when Chromium refuses a command or a script throws."""


class _Version(msgspec.Struct):
    product: str


class _Detached(msgspec.Struct):
    sessionId: str = ""  # noqa: N815 - the name is DevTools'


class _Message(msgspec.Struct):
    id: int | None = None
    method: str = ""
    sessionId: str = ""  # noqa: N815
    params: msgspec.Raw = NOTHING
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class Browser:
    """A running Chromium. Thread-safe; once dead it stays dead, and every call raises `EnvError("crash")`."""

    def __init__(self, executable: str, *, renderers: int = 1) -> None:
        parent = os.environ.get("ARPO_SESSION_DIR") or tempfile.gettempdir()
        self.profile = Path(tempfile.mkdtemp(prefix="arpo-chromium-", dir=parent))
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()  # its own: a full pipe must not stop the reader
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[str, Future[msgspec.Raw]]] = {}
        self._events: dict[tuple[str, str], Future[msgspec.Raw]] = {}
        self._others: dict[int, msgspec.Raw] = {}
        """The number of each command that was forwarded, by ours."""
        self._other: Callable[[bytes], None] | None = None
        self._dead = ""
        with ExitStack() as undo:  # nothing is left of a browser that does not start
            undo.callback(shutil.rmtree, self.profile, ignore_errors=True)
            self.pid, self._write_fd, self._read_fd = _spawn(executable, self.profile, renderers)
            undo.callback(self.kill, "it did not start")
            threading.Thread(target=self._read, name="arpo-chromium", daemon=True).start()
            version = decoded(self.call("Browser.getVersion", timeout_s=START_TIMEOUT_S), _Version, "its version")
            undo.pop_all()
        log.info("started %s as process %d", version.product, self.pid)

    @property
    def alive(self) -> bool:
        """True while commands can be sent."""
        return not self._dead

    def send(self, method: str, params: Mapping[str, Any] | None = None, session: str = "") -> "Future[msgspec.Raw]":
        """Send one command and return the future of its answer."""
        future: Future[msgspec.Raw] = Future()
        message: dict[str, Any] = {"method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        with self._lock:
            if self._dead:
                raise EnvError("crash", f"the browser is gone: {self._dead}")
            message["id"] = next(self._ids)
            self._pending[message["id"]] = (session, future)
        self._write(json.dumps(message).encode())
        return future

    @contextmanager
    def shared(self, answer: Callable[[bytes], None]) -> Iterator[None]:
        """Hand all events, and the answers to what is forwarded, to another client while the block runs."""
        self._other = answer
        try:
            yield
        finally:
            self._other = None

    def forward(self, message: str | bytes) -> None:
        """Send a command of another client, with a number of ours."""
        command = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
        with self._lock:
            number = next(self._ids)
            self._others[number] = command.get("id", NOTHING)
        self._write(msgspec.json.encode(command | {"id": number}))

    def _write(self, message: bytes) -> None:
        try:
            with self._write_lock:
                left = message + b"\0"
                while left:
                    left = left[os.write(self._write_fd, left) :]
        except OSError as error:
            self._fail("it closed its pipe")  # the reader may see its end later than the next environment
            raise EnvError("crash", f"the browser closed its pipe: {error}") from error

    def event(self, session: str, name: str) -> "Future[msgspec.Raw]":
        """Return the future of the next event of this name in this session; ask before causing it."""
        future: Future[msgspec.Raw] = Future()
        with self._lock:
            if self._dead:
                raise EnvError("crash", f"the browser is gone: {self._dead}")
            self._events[(session, name)] = future
        return future

    def wait(self, futures: "Iterable[Future[msgspec.Raw]]", deadline: float, what: str) -> list[msgspec.Raw]:
        """Return the answers; kill a browser that does not give them in time.

        Raises:
            EnvError: `timeout` or `crash`.
            ChromiumError: If Chromium refused a command.
        """
        try:
            return [future.result(max(0.0, deadline - time.monotonic())) for future in futures]
        except FutureTimeoutError as error:
            # A hung page holds the renderer that its neighbours share: a new browser is the only way on.
            self.kill(f"{what} hung")
            raise EnvError("timeout", f"{what}: no answer in time; the browser was killed") from error

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, session: str = "", *, timeout_s: float
    ) -> msgspec.Raw:
        """Send one command and return its answer, in JSON."""
        return self.wait([self.send(method, params, session)], time.monotonic() + timeout_s, method)[0]

    def kill(self, reason: str) -> None:
        """End the browser and everything it started, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._fail(reason)

    def close(self) -> None:
        """Ask the browser to exit, kill it where it does not, and remove its profile."""
        if self.alive:
            with suppress(EnvError):
                self.send("Browser.close")
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while not _reaped(self.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.kill("it was closed")
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self) -> None:
        reason, buffer = "its process ended", bytearray()
        try:
            while chunk := os.read(self._read_fd, 1 << 20):
                for message in _messages(buffer, chunk):
                    read = decoded(message, _Message, "DevTools", fault="crash")
                    if (other := self._other) is not None and (read.id is None or read.id in self._others):
                        other(self._with_its_number(message, read.id))
                    self._dispatch(read)
        except (EnvError, OSError) as error:
            reason = str(error)
        os.close(self._read_fd)
        self.kill(reason)  # a browser that lives on would not be read
        _reaped(self.pid)

    def _with_its_number(self, message: bytes, number: int | None) -> bytes:
        if number is None:
            return message
        answer = msgspec.json.decode(message, type=dict[str, msgspec.Raw])
        return msgspec.json.encode(answer | {"id": self._others[number]})

    def _dispatch(self, message: _Message) -> None:
        if message.id is not None:
            with self._lock:
                if self._others.pop(message.id, None) is not None:
                    return
                _, future = self._pending.pop(message.id, ("", Future()))
            if message.result is ABSENT:
                said = bytes(message.error)[:500].decode(errors="replace")
                future.set_exception(ChromiumError(f"command refused: {said}"))
            else:
                future.set_result(message.result)
            return
        if message.method in ("Inspector.targetCrashed", "Target.detachedFromTarget"):
            lost = decoded(message.params, _Detached, message.method, fault="crash")
            self._fail_session(lost.sessionId or message.sessionId)
            return
        with self._lock:
            waiter = self._events.pop((message.sessionId, message.method), None)
        if waiter is not None:
            waiter.set_result(message.params)

    def _fail_session(self, session: str) -> None:
        with self._lock:
            lost = [number for number, (owner, _) in self._pending.items() if owner == session]
            futures = [self._pending.pop(number)[1] for number in lost]
            futures += [self._events.pop(key) for key in list(self._events) if key[0] == session]
        for future in futures:
            future.set_exception(EnvError("crash", "the page's renderer crashed"))

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._dead:
                return
            self._dead = reason
            futures = [future for _, future in self._pending.values()] + list(self._events.values())
            self._pending.clear()
            self._events.clear()
        with self._write_lock:
            os.close(self._write_fd)
            self._write_fd = -1  # a late write fails instead of reaching the next owner of the number
        for future in futures:
            future.set_exception(EnvError("crash", f"the browser is gone: {reason}"))


def _spawn(executable: str, profile: Path, renderers: int) -> tuple[int, int, int]:
    child_in, write_fd = os.pipe()
    read_fd, child_out = os.pipe()
    # Above 9, so that no source is overwritten by the copies to 0-4.
    null = os.open(os.devnull, os.O_RDWR)
    sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (null, child_in, child_out)]
    environment = {**os.environ, "HOME": str(profile), "TMPDIR": str(profile), "TZ": "UTC", "LANGUAGE": "en_US"}
    arguments = [executable, *FLAGS, f"--renderer-process-limit={renderers}", f"--user-data-dir={profile}"]
    try:
        pid = os.posix_spawn(
            executable,
            [*arguments, "about:blank"],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, sources[0], stream) for stream in (0, 1, 2)]
            + [(os.POSIX_SPAWN_DUP2, sources[1], 3), (os.POSIX_SPAWN_DUP2, sources[2], 4)],
            setpgroup=0,  # one group for the whole tree: one signal ends it
        )
    finally:
        for descriptor in (child_in, child_out, null, *sources):
            os.close(descriptor)
    return pid, write_fd, read_fd


def _messages(buffer: bytearray, chunk: bytes) -> Iterator[bytes]:
    """Add what was read to the buffer, and yield the messages that are whole now, without their last byte 0."""
    *ends, rest = chunk.split(b"\0")
    for end in ends:
        yield bytes(buffer) + end
        buffer.clear()
    buffer += rest
    if len(buffer) > LARGEST_MESSAGE:
        raise EnvError("crash", f"it sent a message of more than {LARGEST_MESSAGE} bytes")


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
