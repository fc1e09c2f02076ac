"""What a terminal shows: xterm prints its screen to a file when its own tty says so."""

import os
from collections.abc import Iterator
from contextlib import suppress

import walls
from programs import Programs

PRINT = """
cd "$XDG_RUNTIME_DIR" && rm -f screen && printf '\\033[i' >"$1" || exit
for _ in $(seq 100); do
    [ -e screen ] && exec cat screen
    sleep 0.02
done
exit 1
"""
"""Writes the control sequence "print screen" (MC, Ps = 0); /etc/X11/app-defaults/XTerm says where the picture goes."""
SECOND_CELL = "\uffff"
"""What xterm prints for the right half of a wide character."""
PSEUDO_TERMINALS = 136


def shown(terminal: int, programs: Programs) -> str | None:
    """Return the text that an xterm shows, without empty lines at its end; None if it does not answer.

    Args:
        terminal: Process id of the xterm.
        programs: Run the helper, for the tty is the user's.
    """
    tty = next(_ttys(terminal), None)
    if tty is None:
        return None
    done = programs.execute(["sh", "-c", PRINT, "sh", tty], shell=False, alone=False)
    if done["returncode"] != 0:
        return None
    lines = done["output"].replace(SECOND_CELL, "").splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _ttys(parent: int) -> Iterator[str]:
    """Yield the ttys of the children of a process: its shell's."""
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # it ended while we looked
                fields = walls.status(entry.path)
                tty = int(fields[4])
                if int(fields[1]) == parent and tty >> 8 & 0xFFF == PSEUDO_TERMINALS:
                    yield f"/dev/pts/{tty & 0xFF | tty >> 12 & 0xFFF00}"
