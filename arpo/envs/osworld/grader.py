"""OSWorld's own graders, in a cell, with packages of their own."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from arpo.bounds import Positive, checked
from arpo.envs.guest.blame import score_of
from arpo.envs.osworld.machine import CHROMIUM_PORT, SERVER_PORT, VLC_PORT
from arpo.errors import ConfigError
from arpo.host.cell import Cells, Files, Program

MAIN = Path(__file__).parent / "grader_main.py"


class GuestDoors(NamedTuple):
    """Connections to the servers of one guest, as OSWorld's graders need them."""

    server: Callable[[], socket.socket]
    chromium: Callable[[], socket.socket]
    vlc: Callable[[], socket.socket]
    secret: str = ""


@checked
class Grader:
    """OSWorld's graders, which score one task at a time, in the environment that `make osworld` makes."""

    def __init__(
        self, python: str | Path, *, timeout_s: Positive, cells: Callable[[Program], Cells] = Cells.of
    ) -> None:
        if not Path(python).exists():
            raise ConfigError(
                f"OSWorld's graders need an environment of their own, and there is no {python}: make osworld"
            )
        self._cells: Cells | None = cells(Program(Path(python), MAIN, wall_s=timeout_s))

    def grade(self, evaluator: Mapping[str, Any], doors: GuestDoors, files: Files) -> float:
        """Return the score of a task.

        Args:
            files: What it is compared with, and what steps have saved, by the names that the evaluator has for them.

        Raises:
            BlamedError: If there is no score, and the agent can have caused that.
            EnvError: If there is no score, and no agent can cause that.
        """
        assert self._cells is not None
        ports = {"server": SERVER_PORT, "chromium": CHROMIUM_PORT, "vlc": VLC_PORT}
        guest = {"host": "127.0.0.1", "secret": doors.secret} | {f"{name}_port": each for name, each in ports.items()}
        ways = {name: (port, getattr(doors, name)) for name, port in ports.items()}
        return score_of(self._cells.judge({"guest": guest, "evaluator": evaluator}, files, ways))

    def wait_until_ready(self) -> None:
        """Wait until a cell is ready; raises `EnvError` if none starts."""
        assert self._cells is not None
        self._cells.wait_until_ready()

    def close(self) -> None:
        """Let go of the cells; idempotent."""
        cells, self._cells = self._cells, None
        if cells is not None:
            cells.leave()
