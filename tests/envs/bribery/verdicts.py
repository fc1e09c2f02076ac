"""What a judge says of an attack, and what the attack may have cost the process of the trainer."""

import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from arpo.errors import BlamedError

LIMIT_S = 30.0
"""For one verdict, on a machine with a core for it."""
GROWTH = 64 * 2**20
PAGE = os.sysconf("SC_PAGE_SIZE")


def verdict(judge):
    """The score, or the kind of the error that counts as 0; an error that makes the episode void is passed on."""
    try:
        return judge()
    except BlamedError as error:
        return error.kind


@contextmanager
def unharmed():
    """A judgement that is quick, takes no memory of this process, and writes nothing to this machine."""
    began, memory, files = time.monotonic(), _memory(), _files()
    yield
    assert time.monotonic() - began < LIMIT_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert _memory() - memory <= GROWTH
    assert _files() <= files


def _memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def _files():
    """What lies in the temporary and the current directory, which are this test's own, and where attacks write to."""
    found = {f"{folder}/{name}" for folder in (tempfile.gettempdir(), os.getcwd()) for name in os.listdir(folder)}
    escaped = {path for path in ("/tmp/escaped", "/dev/shm/escaped") if os.path.exists(path)}
    return {path for path in found if "/arpo-cell-" not in path} | escaped
