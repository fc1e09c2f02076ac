"""Starting the X server and the window manager of this desktop."""

import os
import subprocess
import threading
import time
from pathlib import Path

from desktop import Desktop

START_LIMIT_S = 20.0


class StartError(Exception):
    """Raised when the display does not come up."""


def start_x_server(screen: str, runtime: Path) -> subprocess.Popen:
    """Start Xvfb on display :1 with its framebuffer in a file; it is ready when `wait_for_display` returns."""
    Path("/tmp/.X1-lock").unlink(missing_ok=True)
    Path("/tmp/.X11-unix/X1").unlink(missing_ok=True)
    os.environ["DISPLAY"] = ":1"
    options = f"-screen 0 {screen} -fbdir {runtime} -nolisten tcp -noreset -dpi 96 +extension XTEST"
    return subprocess.Popen(["Xvfb", ":1", *options.split()], stderr=subprocess.DEVNULL)


def wait_for_display(x_server: subprocess.Popen, runtime: Path) -> Desktop:
    """Connect to the X server once it listens.

    Raises:
        StartError: If it ends instead, or takes too long.
    """
    socket, framebuffer = Path("/tmp/.X11-unix/X1"), runtime / "Xvfb_screen0"
    _wait(lambda: socket.exists() and framebuffer.exists(), x_server, "the X server does not listen")
    return Desktop(framebuffer)


def start_window_manager(desktop: Desktop) -> subprocess.Popen:
    """Start openbox and wait until it owns the root window: windows that come earlier are sometimes never mapped.

    Raises:
        StartError: If it ends instead, or takes too long.
    """
    process = subprocess.Popen(["openbox"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait(desktop.has_window_manager, process, "openbox does not manage the display")
    return process


def end_with(process: subprocess.Popen, name: str) -> None:
    """End this server, and so the container, when a process that it cannot do without ends."""

    def watch() -> None:
        status = process.wait()
        os.write(2, f"{name} ended with status {status}\n".encode())
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _wait(ready, process: subprocess.Popen, trouble: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StartError(trouble)
        time.sleep(0.01)
