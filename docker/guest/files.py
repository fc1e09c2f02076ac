"""The files of the user: what a new desktop starts with, and how it gets that back."""

import fcntl
import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import walls

WRITABLE = ("/home/user", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/arpo")
KEPT = "/tmp/.X11-unix"
"""Belongs to the machine; the X server of the next session puts its socket there."""

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""Of a file or a directory, by ioctl: FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, by `chattr` for people."""


class FilesLeftError(Exception):
    """Raised when something of the last episode is still there."""


@dataclass(frozen=True)
class Attributes:
    """What the owner of a directory may change of it, beside what is in it."""

    mode: int
    flags: bytes
    extended: frozenset[str]
    """Names of extended attributes; the kernel keeps access lists there too."""

    @classmethod
    def of(cls, directory: str) -> "Attributes":
        """Read them."""
        return cls(os.stat(directory).st_mode & 0o7777, flags(directory), frozenset(os.listxattr(directory)))

    def restore(self, directory: str) -> None:
        """Give a directory these back; a new file in it begins with its flags and its default access list."""
        for name in set(os.listxattr(directory)) - self.extended:
            os.removexattr(directory, name)
        if flags(directory) != self.flags:
            _set_flags(directory, self.flags)
        if os.stat(directory).st_mode & 0o7777 != self.mode:  # last: an access list changes it too
            os.chmod(directory, self.mode)
        if os.stat(directory).st_uid == walls.USER.pw_uid:
            os.utime(directory)  # an owner may set any time, and one in the future stays


class Files:
    """All that the user may write to; make one when the desktop is new."""

    def __init__(self) -> None:
        self._when_new = {directory: Attributes.of(directory) for directory in WRITABLE}
        self._furnish()

    def renew(self) -> None:
        """Remove everything and start again; no program of the user may run.

        Raises:
            FilesLeftError: If the user may not remove something; then this desktop is of no use any more.
        """
        # A directory that its owner has locked keeps what is in it, even from him.
        chmod = [*walls.AS_USER, "chmod", "--recursive", "u+rwx", *WRITABLE]
        subprocess.run(chmod, stderr=subprocess.DEVNULL, check=False)
        remove = [*walls.AS_USER, "find", *WRITABLE, "-ignore_readdir_race", "-depth", "-mindepth", "1"]
        remove += ["!", "-path", KEPT, "!", "-user", "display", "!", "-delete", "-print"]
        done = subprocess.run(remove, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or done.stdout:
            raise FilesLeftError(f"files of the last episode are left: {(done.stdout + done.stderr)[:500]}")
        subprocess.run([*walls.AS_USER, "ipcrm", "--all"], stderr=subprocess.DEVNULL, check=False)
        self._furnish()

    def _furnish(self) -> None:
        with walls.files_of(walls.USER):
            for directory, attributes in self._when_new.items():
                attributes.restore(directory)
            shutil.copytree("/etc/skel", Path.home(), dirs_exist_ok=True)


def flags(path: str) -> bytes:
    """Return the flags that a file system keeps of a file or a directory; empty where it keeps none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))
        finally:
            os.close(descriptor)
    return b""


def _set_flags(path: str, wanted: bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, _SET_FLAGS, wanted)
    finally:
        os.close(descriptor)
