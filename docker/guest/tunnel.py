"""Connections to programs of the desktop that a check asks, such as VLC: made only if that program itself answers.

An agent may listen on any port and say what a check wants to hear. So the owner of the very connection is looked up,
and while there is one, all programs of the user stand still but those that it may lead to: none can take it and become
VLC, or hand it on.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import walls
from stillness import STILLNESS, RestlessError

ACCEPT_S = 3.0
CHROME = ("/usr/lib/chromium/chromium", "/usr/lib/chromium/chrome", "/opt/google/chrome/chrome")
VLC = ("/usr/bin/vlc",)
PROGRAMS: dict[str, tuple[tuple[int, tuple[str, ...]], ...]] = {
    "chromium": ((1337, CHROME), (9222, CHROME)),  # tasks start it on the first one, and a relay on the other
    "vlc": ((8080, VLC),),
}
"""The ports at which a program may answer, and the files that it may be."""
SYSTEM = ("/usr/", "/lib")
LEADS_ELSEWHERE = ("LD_", "VLC_", "QT_PLUGIN", "QT_QPA_PLATFORM_PLUGIN", "GTK_MODULES", "GTK_PATH", "GIO_EXTRA")
"""Beginnings of variables by which a program would run code that is none of its own."""
VLC_DATA = "XDG_DATA_HOME=/usr/share/arpo-vlc"
VLC_WORDS = (
    "--intf=qt",
    "--extraintf=http",
    "--control=",
    "--lua-intf=",
    "--lua-config=",
    "--services-discovery=",
    "--http-src=/usr/share/vlc/lua/http",
)
"""How `/usr/local/bin/vlc` starts VLC: with no script and no page of the user's, whatever the settings said then."""
VLC_HARMLESS = ("--started-from-file", "--fullscreen", "-f", "--loop", "--repeat", "--random", "--play-and-pause")
"""What else may be on its command line, beside names of films."""


class NotItselfError(Exception):
    """Raised when a program does not answer, or another one answers in its place."""


@contextmanager
def connected(name: str) -> Iterator[socket.socket]:
    """Give a connection to a program.

    Raises:
        NotItselfError: If another program answers.
    """
    files = tuple(file for _, files in PROGRAMS[name] for file in files)
    try:
        end = STILLNESS.begin(lambda pid: not _doubt_of(pid, files))
    except RestlessError as error:
        raise NotItselfError(str(error)) from error
    try:
        with _connection(name) as connection:
            yield connection
    finally:
        end()


def _connection(name: str) -> socket.socket:
    answered = ["nothing listens"]
    for port, files in PROGRAMS[name]:
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=ACCEPT_S)
            if not (doubt := _doubt(connection, files)):
                connection.settimeout(None)
                return connection
            connection.close()
            answered.append(f"on port {port}, {doubt}")
    raise NotItselfError(f"{name} does not answer: {answered[-1]}")


def stranger(place: str, program: str) -> str:
    """Return the program that listens at a socket in the place of another; empty where that does."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(place)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        found = programs().get(struct.unpack("3i", credentials)[0], "something that has ended")
        return "" if found == program else found
    return "nothing"


def programs() -> dict[int, str]:
    """Return the files of the programs of the user's processes."""
    found = {}
    for pid, _, _ in walls.processes((walls.USER.pw_uid,)):
        with suppress(OSError), walls.owner_of(pid):
            found[pid] = os.readlink(f"/proc/{pid}/exe")
    return found


def pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until one side ends."""
    back = threading.Thread(target=_carry, args=(other, one), daemon=True)
    back.start()
    _carry(one, other)
    back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _doubt(connection: socket.socket, files: tuple[str, ...]) -> str:
    """Return the reason to doubt that the other end of a connection is one of these programs; empty where it is."""
    deadline = time.monotonic() + ACCEPT_S
    while not (inode := _inode(connection)):  # it has none before the program has taken it
        if time.monotonic() > deadline:
            return "no program takes the connection"
        time.sleep(0.01)
    owners = [pid for pid, _, _ in walls.processes((walls.USER.pw_uid,)) if _holds(pid, inode)]
    doubts = [each for pid in owners if (each := _doubt_of(pid, files))]
    return "no program holds the connection" if not owners else doubts[0] if doubts else ""


def _inode(connection: socket.socket) -> int:
    """Return the number of the socket at the other end; 0 where it has none."""
    ends = [_as_in_tables(*end) for end in (connection.getpeername(), connection.getsockname())]
    for table, before in (("/proc/net/tcp", ""), ("/proc/net/tcp6", "0000000000000000FFFF0000")):
        for row in Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[1:3] == [before + end for end in ends]:
                return int(fields[9])
    return 0


def _as_in_tables(address: str, port: int) -> str:
    return f"{struct.unpack('=I', socket.inet_aton(address))[0]:08X}:{port:04X}"


def _holds(pid: int, inode: int) -> bool:
    with suppress(OSError), walls.owner_of(pid):
        return any(os.readlink(each.path) == f"socket:[{inode}]" for each in os.scandir(f"/proc/{pid}/fd"))
    return False


def _doubt_of(pid: int, files: tuple[str, ...]) -> str:
    """Return the reason why a process is not one of these programs, or runs code that is not of the system."""
    try:
        with walls.owner_of(pid):
            program = os.readlink(f"/proc/{pid}/exe")
            if program not in files:  # what else it says of itself may take it as long as it likes
                return f"{program} answers"
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError as error:
        return f"the program has ended: {error}"
    if found := [each for each in variables if each.startswith(LEADS_ELSEWHERE)]:
        return f"{program} was started with {found[0]}"
    code = (row.split(maxsplit=5) for row in mapped)
    if foreign := [row[5] for row in code if len(row) == 6 and "x" in row[1] and _is_foreign(row[5])]:
        return f"{program} runs code of {foreign[0]}"
    return "" if program not in VLC or _is_plain(words, variables) else f"{program} was not started as VLC is"


def _is_plain(words: list[str], variables: list[str]) -> bool:
    if [each for each in variables if each.startswith("XDG_DATA_HOME=")] != [VLC_DATA]:
        return False
    forced, others = words[1 : 1 + len(VLC_WORDS)], words[1 + len(VLC_WORDS) :]
    return forced == [*VLC_WORDS] and all(each in VLC_HARMLESS or not each.startswith("-") for each in others)


def _is_foreign(path: str) -> bool:
    return path.startswith("/") and not path.startswith(SYSTEM)
