"""The files of the user: what a new desktop starts with, and how it gets that back."""

import os
import shutil
import subprocess
from pathlib import Path

import walls

WRITABLE = ("/home/user", "/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/arpo")
KEPT = "/tmp/.X11-unix"
"""Belongs to the machine; the X server of the next session puts its socket there."""


class FilesLeftError(Exception):
    """Raised when something of the last episode is still there."""


class Files:
    """All that the user may write to; make one when the desktop is new."""

    def __init__(self) -> None:
        self._modes = {directory: os.stat(directory).st_mode & 0o7777 for directory in WRITABLE}
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
            for directory, mode in self._modes.items():
                if os.stat(directory).st_mode & 0o7777 != mode:
                    os.chmod(directory, mode)
            shutil.copytree("/etc/skel", Path.home(), dirs_exist_ok=True)
