"""Judging: programs that look at what an agent has made, and files put in for that, out of the agent's reach.

A program of a check runs as the user, so that it may do what the user may, and in a group that no other process has:
the kernel lets no process trace one of another group, read its memory or take its files. What is uploaded for judging
lies in a folder of this server, which that program alone may read; wherever a command or a script names the path that
the upload was for, it gets the path in that folder.
"""

import os
import re
import shutil
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import walls

FOLDER = Path("/run/judge")
"""Of root and the group `judge`; no other user may enter."""
FIRST_GROUP = 100_000
"""The groups of the programs of checks are the numbers from here on."""
PATIENCE_S, PATIENCE_AFTER_A_HANG_S = 12.0, 3.0
"""For one program; what kept one waiting keeps the next waiting, too."""
STARVED_S = 60.0
"""For a program that has not had its chance, because the machine was busy with other things."""


class Judge:
    """The state of judging: it begins when an episode has ended, and ends with the reset.

    Attributes:
        active: Whether judging has begun.
    """

    def __init__(self) -> None:
        self.active = False
        self._groups = count(FIRST_GROUP)
        self._kept: dict[Path, Path] = {}
        self._hung = False

    def begin(self) -> None:
        """Run every program from now on where no program of the agent can touch it."""
        self.active = True

    def end(self) -> None:
        """Forget what was put in."""
        self.active, self._hung = False, False
        self._kept.clear()
        for each in FOLDER.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    def group(self) -> int | None:
        """Return the group of the next program; None: the user's own, because nothing is judged."""
        return next(self._groups) if self.active else None

    def patience_s(self, wanted_s: float) -> float:
        """Return the seconds that the next program may take."""
        limit_s = PATIENCE_AFTER_A_HANG_S if self._hung else PATIENCE_S
        return min(wanted_s, limit_s) if self.active else wanted_s

    def starves(self, since: float, waits_for_machine: Callable[[], bool]) -> bool:
        """Say whether a program that has used up its patience gets more, for the machine is to blame."""
        if self.active and time.monotonic() - since < STARVED_S and waits_for_machine():
            return True
        self._hung = self.active
        return False

    def keep(self, path: Path, content: bytes) -> None:
        """Put a file in, for the programs of checks alone."""
        path = _at_home(path)
        place = FOLDER / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755)
        self._kept[path] = place
        for each in self._kept.values():  # a script may name a file that comes later
            text = each.read_bytes()
            if text.startswith(b"#!") or each.suffix in (".py", ".sh"):
                each.write_bytes(self._renamed(text.decode(errors="surrogateescape")).encode(errors="surrogateescape"))

    def place(self, path: Path) -> Path | None:
        """Return the file that was put in for a path; None where there is none."""
        return self._kept.get(_at_home(path))

    def rewritten(self, command: str | list[str]) -> str | list[str]:
        """Return a command that names the files that were put in where they are."""
        if not self._kept:
            return command
        return self._renamed(command) if isinstance(command, str) else [self._renamed(str(word)) for word in command]

    def _renamed(self, text: str) -> str:
        for path, place in self._kept.items():
            names = re.escape(str(path))
            if path.is_relative_to(Path.home()):
                names += rf"|(?:~/|\$HOME/|\$\{{HOME\}}/|\./)?{re.escape(str(path.relative_to(Path.home())))}"
            text = re.sub(rf"(?<![\w./~-])(?:{names})(?![\w/-]|\.\w)", lambda _, place=place: str(place), text)
        return text

    def scratch(self) -> Path:
        """Return a new folder to which programs of checks may write, and no others."""
        folder = FOLDER / f"scratch-{next(self._groups)}"
        folder.mkdir()
        folder.chmod(0o770)  # of the group `judge`, like the folder that it is in
        return folder


def _at_home(path: Path) -> Path:
    return Path(os.path.normpath(os.path.join(Path.home(), path)))


def rights(group: int | None) -> tuple[str, ...]:
    """Return the prefix of the command of a program: of a check, or of the user where there is no group."""
    return walls.AS_USER if group is None else walls.as_judge(group)
