"""Files that are whole or absent, whenever the process dies, and a lock that dies with its owner."""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

PARTIAL = ".partial"
"""The ending of a file or directory that is being written; a process that was killed leaves it behind."""


@contextmanager
def atomically(path: Path, *, sync: bool = False, scratch: Path | None = None) -> Iterator[Path]:
    """Yield the path of a new file or directory that takes the place of `path` when the block ends well.

    When the block raises, `path` stays as it was and nothing is left beside it. With `sync`, not even a power cut
    loses the file. The partial one lies beside it, or in another directory on the same disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = (scratch or path.parent) / (path.name + PARTIAL)
    _remove(partial)
    try:
        yield partial
        if sync:
            _sync(partial)
        if path.is_dir():  # a directory that is not empty cannot be replaced
            shutil.rmtree(path)
        partial.replace(path)
    except BaseException:
        _remove(partial)
        raise
    if sync:
        _sync(path.parent)  # the name is in the directory


def write_atomically(path: Path, text: str) -> None:
    """Replace the content of a text file at once; a reader sees the old text or the new one."""
    with atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, but for a last one that a crash cut; none where there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
            else:
                log.warning("%s ends in a line that a crash cut; it is left out", path)


def take_lock(path: Path, mode: int = 0o600) -> int | None:
    """Lock a file for this process; return the descriptor that holds the lock until it is closed, None if it is held.

    The kernel drops the lock when its owner dies, and other containers see it. It is a record lock, because a forked
    child must not inherit it, as it does the `flock` of filelock; in return, it keeps no thread of this process out.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
