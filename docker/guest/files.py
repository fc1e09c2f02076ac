"""The files of the user: what a new desktop starts with, and how it gets that back."""

import os
import shutil
import subprocess
from pathlib import Path

WRITABLE = ("/home/user", "/tmp", "/var/tmp", "/dev/shm", "/run/arpo")
KEPT = ("/tmp/.X11-unix", "/tmp/.X11-unix/X1", "/tmp/.X1-lock", "/run/arpo/Xvfb_screen0")
"""Of the X server, which outlives an episode."""


class FilesLeftError(Exception):
    """Raised when something of the last episode is still there."""


class Files:
    """All that the user may write to; make one when the desktop is new."""

    def __init__(self) -> None:
        self._modes = {directory: os.stat(directory).st_mode & 0o7777 for directory in WRITABLE}
        self._furnish()

    def renew(self) -> None:
        """Remove everything and start again.

        Raises:
            FilesLeftError: If the user may not remove something; then this desktop is of no use any more.
        """
        # A directory that its owner has locked keeps what is in it, even from him.
        subprocess.run(["chmod", "--recursive", "u+rwx", *WRITABLE], stderr=subprocess.DEVNULL, check=False)
        others = [word for path in KEPT for word in ("!", "-path", path)]
        remove = ["find", *WRITABLE, "-ignore_readdir_race", "-depth", "-mindepth", "1", *others]
        remove += ["!", "-delete", "-print"]
        done = subprocess.run(remove, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode or done.stdout:
            raise FilesLeftError(f"files of the last episode are left: {(done.stdout + done.stderr)[:500]}")
        for directory, mode in self._modes.items():
            if os.stat(directory).st_mode & 0o7777 != mode:
                os.chmod(directory, mode)
        self._furnish()

    def _furnish(self) -> None:
        shutil.copytree("/etc/skel", Path.home(), dirs_exist_ok=True)
