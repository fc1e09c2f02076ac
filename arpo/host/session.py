"""One labelled place for everything temporary of a run, and an end for every process that the run started.

A process belongs to a session when it inherited the label in its environment, when it writes into the directory of
the session (Ray's agents overwrite their environment with a title, and a forked child never had the label in it),
or when it descends from such a process. Nothing is ever found by its name.
"""

import atexit
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import arpo
from arpo.errors import ConfigError, EnvError
from arpo.host.containers import CONTAINERS_MARKER, remove_session
from arpo.host.files import take_lock
from arpo.host.processes import (
    DIRECTORY_VARIABLE,
    LABEL_VARIABLE,
    end_processes,
    is_owner_alive,
    process_tag,
    session_directory,
)

log = logging.getLogger(__name__)

MAX_DIRECTORY_LENGTH = 38
"""Ray adds up to 68 characters for its sockets, and Linux allows 107 in the path of a socket."""
REAPING = "reaping"
"""A file in the directory of a session whose end is under way."""
REAPING_PATIENCE_S = 15.0
"""How long a start waits for that end: what still runs may hold the memory that the new run needs."""


class Session(AbstractContextManager["Session"]):
    """The temporary directory, short enough for Ray's sockets, and the label of the processes of one run.

    While it is open, `ARPO_SESSION`, `ARPO_SESSION_DIR` and `TMPDIR` lead every child to it. A run that was killed
    cannot close its session: its watchdog does, within seconds, and where that was killed too, the next `start` under
    the same root.
    """

    def __init__(self, directory: Path, descriptors: tuple[int, ...], watchdog: "subprocess.Popen[bytes]") -> None:
        self.directory = directory
        self.label = directory.name
        self._descriptors = descriptors
        self._watchdog = watchdog
        self._owner = os.getpid()
        self._closed = False
        temporary = directory / "tmp"
        temporary.mkdir()
        exported = {LABEL_VARIABLE: self.label, DIRECTORY_VARIABLE: str(directory), "TMPDIR": str(temporary)}
        self._environment_before = {name: os.environ.get(name) for name in exported}
        os.environ.update(exported)
        tempfile.tempdir = None  # forget the cached answer, which is from before TMPDIR changed

    @classmethod
    def start(cls, root: Path | None = None) -> "Session":
        """Reap what dead runs left under a root, by default one per user, then open the session of this process."""
        root = root if root is not None else _default_root()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = root.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"{root} belongs to user {found.st_uid}, not to us; remove it or set TMPDIR elsewhere")
        directory = root / process_tag()
        if directory.exists():
            raise ConfigError(f"this process already has an open session at {directory}; close it before the next")
        reap(root)
        lock = take_lock(_lock_of(directory))
        if lock is None:
            raise ConfigError(f"{directory}.lock is held by a process of another container; give each its own TMPDIR")
        directory.mkdir(mode=0o700)
        # An open file inside marks children that are forked and never execute another program.
        marker = os.open(directory / "owner", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        session = cls(directory, (marker, lock), _watchdog(directory))
        atexit.register(session.close)
        return session

    def close(self) -> None:
        """End the processes that are left, remove the directory and restore the environment; idempotent."""
        if self._closed or os.getpid() != self._owner:  # a forked child must not end its parent's run
            return
        self._closed = True
        atexit.unregister(self.close)
        ended = end_processes(self.label, self.directory)
        if ended:
            log.info("ended %d processes that the run had left", ended)
        _remove_containers(self.directory)
        for name, value in self._environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        tempfile.tempdir = None
        _remove(self.directory)
        for descriptor in self._descriptors:
            os.close(descriptor)
        assert self._watchdog.stdin is not None
        with suppress(BrokenPipeError), self._watchdog.stdin as pipe:  # it may have been ended
            pipe.write(b".")
        self._watchdog.kill()  # its first process, which ends by itself where the watchdog has begun
        self._watchdog.wait()

    def __exit__(self, *_: object) -> None:
        self.close()


def reap(root: Path) -> int:
    """End what all sessions under `root` have left whose owner is gone; return how many there were."""
    sessions = processes = 0
    for lock_path in sorted(root.glob("*.lock")):
        directory = lock_path.with_suffix("")
        deadline = time.monotonic() + REAPING_PATIENCE_S
        while (ended := end_session(directory)) is None and (directory / REAPING).exists():
            if time.monotonic() > deadline:
                log.warning("%s, of a dead run, was not cleaned up within %g s", directory, REAPING_PATIENCE_S)
                break
            time.sleep(0.05)
        if ended is not None:
            sessions, processes = sessions + 1, processes + ended
    if sessions:
        log.info("cleaned up after %d dead runs and ended %d processes of theirs", sessions, processes)
    return sessions


def end_session(directory: Path) -> int | None:
    """End what a dead run has left and return its processes' number; None if there is nothing, or others are at it."""
    if is_owner_alive(directory.name):
        return None
    lock = take_lock(_lock_of(directory))
    if lock is None:  # the owner lives in another container, or another process is at it
        return None
    existed = directory.exists()
    if existed:
        (directory / REAPING).touch()
    ended = end_processes(directory.name, directory)
    _remove_containers(directory)
    _remove(directory)
    os.close(lock)
    return ended if existed or ended else None


def _watchdog(directory: Path) -> "subprocess.Popen[bytes]":
    """Start the watchdog of a session, outside of every session."""
    outside = {k: v for k, v in os.environ.items() if k not in (LABEL_VARIABLE, DIRECTORY_VARIABLE)}
    return subprocess.Popen(
        [sys.executable, "-m", "arpo.host.watchdog", str(directory)],
        cwd=Path(arpo.__file__).parent.parent,
        env=outside,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _default_root() -> Path:
    """Return the root of this user's sessions; a run inside a session gets a place beside it, not below it."""
    enclosing = session_directory()
    if enclosing is not None:
        return enclosing.parent
    root = Path(tempfile.gettempdir()) / f"arpo-{os.getuid()}"
    too_long = len(str(root / process_tag())) > MAX_DIRECTORY_LENGTH
    return Path("/tmp") / root.name if too_long else root


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + ".lock")


def _remove_containers(directory: Path) -> None:
    """Remove the containers of a session, if it has started any."""
    if not (directory / CONTAINERS_MARKER).exists():
        return
    try:
        removed = remove_session(directory.name)
    except EnvError as error:
        log.warning("containers of session %s may be left: %s", directory.name, error)
    else:
        if removed:
            log.info("removed %d containers that the run had left", removed)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        log.warning("could not remove %s entirely", directory)
    _lock_of(directory).unlink(missing_ok=True)
