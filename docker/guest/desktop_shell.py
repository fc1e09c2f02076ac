"""What a desktop has before anybody uses it: a background, a panel, and the bus of accessible applications."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from desktop import Desktop
from display import StartError
from programs import Programs

BACKGROUND = 0x3C6478
PANEL = ["tint2", "-c", "/etc/xdg/tint2/tint2rc"]
BUS = ["dbus-daemon", "--nofork", "--config-file=/usr/share/defaults/at-spi2/accessibility.conf"]
START_LIMIT_S = 10.0


class ShellError(StartError):
    """Raised when the panel or the bus does not come up."""


class DesktopShell:
    """The part of a desktop that runs as the user, who may end it: a reset starts it anew."""

    def __init__(self, desktop: Desktop, programs: Programs) -> None:
        self._desktop = desktop
        self._programs = programs

    def begin(self) -> None:
        """Paint the background, start panel and bus, and wait until both are there.

        Raises:
            ShellError: If they are not in time.
        """
        self._desktop.paint(BACKGROUND)
        self._wait(lambda: not self._desktop.shows_panel(BACKGROUND), "the panel before has not gone")
        address = os.environ["AT_SPI_BUS_ADDRESS"]
        self._programs.launch([*BUS, f"--address={address}"], shell=False)
        self._programs.launch(PANEL, shell=False)
        self._wait(lambda: self._desktop.shows_panel(BACKGROUND), "no panel has come")
        socket = Path(address.partition("path=")[2])
        self._wait(socket.exists, f"there is no {socket}")

    def _wait(self, ready: Callable[[], bool], trouble: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready():
            if time.monotonic() > deadline:
                raise ShellError(f"{trouble} after {START_LIMIT_S:.0f} s")
            time.sleep(0.01)
