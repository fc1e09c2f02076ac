"""The session of a desktop: X server, window manager, and this server's view of both, from one reset to the next."""

import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import walls
from desktop import Desktop
from devices import Devices
from watch import Watch

START_LIMIT_S = 20.0
LOOK_S = 0.25
FRAMEBUFFER = Path("/run/display/Xvfb_screen0")
SOCKET = Path("/tmp/.X11-unix/X1")
LOCK = Path("/tmp/.X1-lock")


class StartError(Exception):
    """Raised when the display does not come up."""


class Session:
    """An X server and a window manager that start and end together.

    A session that a program of the desktop ends is over: all programs are ended, and `ended_by` says how it came.

    Attributes:
        desktop: The display.
        devices: Its mouse and keyboard.
        ended_by: What ended the session before its time; empty while it goes on.

    Raises:
        StartError: If the display does not come up.
    """

    def __init__(self, screen: str) -> None:
        """Start both; `screen` is `<width>x<height>x<depth>`."""
        self.ended_by = ""
        self._lock = threading.Lock()
        self._over = False
        with walls.files_of(walls.DISPLAY):
            for path in (SOCKET, LOCK, FRAMEBUFFER):
                path.unlink(missing_ok=True)
        os.environ["DISPLAY"] = ":1"
        x_server = _start_x_server(screen)
        self.desktop = _connected(x_server)
        window_manager = _start_window_manager(self.desktop)
        self.devices = Devices(self.desktop)
        self.devices.park()
        for watch, *watched in (
            (self._watch, x_server, "the X server"),
            (self._watch, window_manager, "the window manager"),
            (self._watch_call, x_server.pid),
        ):
            threading.Thread(target=watch, args=watched, daemon=True).start()

    def end(self) -> None:
        """End everything that runs on the desktop; idempotent.

        Raises:
            walls.ProcessesLeftError: If a process does not end.
        """
        with self._lock:  # until the end: what starts then starts after the last kill
            self._over = True
            walls.end_everything()
        self.desktop.end()  # and not when garbage is collected, which may be forty sessions later

    def give_up(self, why: str) -> None:
        """End a session that a program has made useless, and with it what every program holds."""
        with self._lock:
            if self._over:
                return
            self._over, self.ended_by = True, why
            os.write(2, f"{why}\n".encode())
            walls.end_everything()

    def _watch(self, process: subprocess.Popen, name: str) -> None:
        process.wait()
        self.give_up(f"{name} has ended")

    def _watch_call(self, x_server: int) -> None:
        """End a session in which programs keep the X server or this server from an answer."""
        walls.go_first()
        watch = Watch(self.desktop.lock, x_server)
        while not self._over:
            with suppress(OSError):
                if why := watch.look():
                    self.give_up(why)
            time.sleep(LOOK_S)


def _start_x_server(screen: str) -> subprocess.Popen:
    # -r: no key repeats itself, or one that a busy machine holds for too long would type twice.
    options = f"-r -screen 0 {screen} -fbdir {FRAMEBUFFER.parent} -nolisten tcp -noreset -dpi 96 +extension XTEST"
    command = [*walls.AS_DISPLAY, "Xvfb", ":1", *options.split()]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


def _connected(x_server: subprocess.Popen) -> Desktop:
    _wait(lambda: SOCKET.exists() and FRAMEBUFFER.exists(), x_server, "the X server does not listen")
    return Desktop(FRAMEBUFFER)


def _start_window_manager(desktop: Desktop) -> subprocess.Popen:
    """Start openbox and wait until it owns the root window: windows that come earlier are sometimes never mapped."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*walls.AS_USER, "openbox"], stdin=quiet, stdout=quiet, stderr=quiet, cwd="/")
    _wait(desktop.has_window_manager, process, "openbox does not manage the display")
    return process


def _wait(ready, process: subprocess.Popen, trouble: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StartError(trouble)
        time.sleep(0.005)
