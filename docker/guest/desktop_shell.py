"""The outfit of an unused desktop: a background, a panel, and the bus of accessible applications.

All of it runs as the user, and may be ended: a reset begins it anew.
"""

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


def begin(desktop: Desktop, programs: Programs) -> None:
    """Paint the background, start panel and bus, and wait until both are there.

    Raises:
        StartError: If they are not in time.
    """
    desktop.paint(BACKGROUND)
    _wait(lambda: not desktop.shows_panel(BACKGROUND), "the panel before has not gone")
    address = os.environ["AT_SPI_BUS_ADDRESS"]
    programs.launch([*BUS, f"--address={address}"], shell=False)
    programs.launch(PANEL, shell=False)
    _wait(lambda: desktop.shows_panel(BACKGROUND), "no panel has come")
    socket = Path(address.partition("path=")[2])
    _wait(socket.exists, f"there is no {socket}")


def _wait(ready: Callable[[], bool], trouble: str) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not ready():
        if time.monotonic() > deadline:
            raise StartError(f"{trouble} after {START_LIMIT_S:.0f} s")
        time.sleep(0.01)
