"""Functions of two applications, which an agent may call by name instead of pressing keys.

The server looks a call up by its signature and starts this file as a program of the user (`routes.py`), so that a
function can do what the user could do in a terminal, and nothing else:

    python3 -I functions.py mousepad.open 'path="~/note.txt"'

Paths count from the home directory and may not leave it, wherever links lead. Whatever a function does not do, it
says on its standard error.
"""

import inspect
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

LONGEST_TEXT = 10_000
"""Characters of an argument: a word of a command line has at most 128 KiB, and a character up to twelve bytes."""
LARGEST_FILE = 2**20
"""Bytes of a file in which a text is replaced, before and after."""


class RefusedError(Exception):
    """Raised on what a function does not do."""


def open_in_editor(path: str) -> None:
    """Open a text file in Mousepad."""
    place = _inside(path)
    if not os.path.isfile(place):
        raise RefusedError(f"there is no file {path}")
    _start("mousepad", place)


def write(path: str, text: str) -> None:
    """Make a text the whole content of a file, a new one if there is none."""
    _write(_inside(path), text.encode())


def replace(path: str, find: str, by: str) -> None:
    """Replace a text wherever a file has it."""
    place = _inside(path)
    with os.fdopen(_opened(place, os.O_RDONLY), "rb") as file:
        content = file.read(LARGEST_FILE + 1)
    old, new = find.encode(), by.encode()
    times = content.count(old) if old else 0
    if max(len(content), len(content) + times * (len(new) - len(old))) > LARGEST_FILE:
        raise RefusedError(f"{path} has more than {LARGEST_FILE} bytes, or would have")
    if not times:
        raise RefusedError(f"{path} does not hold {find[:40]!r}")
    _write(place, content.replace(old, new))


def open_folder(path: str) -> None:
    """Show a folder in PCManFM."""
    place = _inside(path)
    if not os.path.isdir(place):
        raise RefusedError(f"there is no folder {path}")
    _start("pcmanfm", place)


def make_folder(path: str) -> None:
    """Make a folder in one that is there."""
    os.mkdir(_inside(path))


def move(path: str, to: str) -> None:
    """Give a file or a folder another place or name, which nothing may have."""
    source, target = _inside(path), _inside(to)
    if os.path.lexists(target):
        raise RefusedError(f"there is something at {to}")
    os.rename(source, target)


FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "mousepad.open": open_in_editor,
    "mousepad.write": write,
    "mousepad.replace": replace,
    "pcmanfm.open": open_folder,
    "pcmanfm.make_folder": make_folder,
    "pcmanfm.move": move,
}
"""All that may be called. The parameters of a function are those of its calls, each of the type that it says."""


def signatures() -> list[dict]:
    """Return name and parameters of every function."""
    return [{"name": name, "parameters": _parameters(function)} for name, function in FUNCTIONS.items()]


def refusal(name: object, arguments: object) -> str:
    """Return the reason to refuse a call; empty where it fits its function."""
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        return f"there is no function {str(name)[:40]!r}"
    wanted = _parameters(function)
    if not isinstance(arguments, dict) or arguments.keys() != wanted.keys():
        return f"{name} takes {', '.join(wanted)}"
    for parameter, kind in wanted.items():
        value = arguments[parameter]
        if type(value).__name__ != kind:
            return f"{name}: {parameter} must be a {kind}"
        if isinstance(value, str) and not _is_text(value):
            return f"{name}: {parameter} has more than {LONGEST_TEXT} characters, or some that are no text"
    return ""


def command_line(name: str, arguments: Mapping[str, object]) -> list[str]:
    """Return the program that performs a call, each argument in a word of its own: words have a largest size."""
    words = (f"{parameter}={json.dumps(value)}" for parameter, value in arguments.items())
    return [sys.executable, "-I", __file__, name, *words]


def main() -> int:
    """Perform the call of the command line; the exit status is 0 where it was done."""
    name = sys.argv[1]
    words = (word.partition("=") for word in sys.argv[2:])
    arguments = {parameter: json.loads(value) for parameter, _, value in words}
    refused = refusal(name, arguments)
    if not refused:
        try:
            FUNCTIONS[name](**arguments)
        # such as a file that is not there, or a chain of links: the program's user may see why
        except (RefusedError, OSError, RecursionError) as error:
            refused = f"{name}: {error}"
    sys.stderr.write(refused)
    return int(bool(refused))


def _parameters(function: Callable[..., None]) -> dict[str, str]:
    return {name: each.annotation.__name__ for name, each in inspect.signature(function).parameters.items()}


def _is_text(value: str) -> bool:
    if len(value) > LONGEST_TEXT or "\0" in value:
        return False
    with suppress(UnicodeEncodeError):
        value.encode()
        return True
    return False


def _inside(path: str) -> str:
    """Resolve a path; a link counts as its target.

    A program of the user may put a link there a moment later. It has no more rights than this one.

    Raises:
        RefusedError: If that is outside of the home directory.
    """
    home = os.path.realpath(Path.home())
    place = os.path.realpath(os.path.join(home, os.path.expanduser(path)))
    if os.path.commonpath([home, place]) != home:
        raise RefusedError(f"{path} is not in the home directory")
    return place


def _opened(place: str, flags: int) -> int:
    """Open what must be a plain file, without waiting: a program may have put a pipe there."""
    descriptor = os.open(place, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RefusedError("that is no plain file")
    return descriptor


def _write(place: str, content: bytes) -> None:
    with os.fdopen(_opened(place, os.O_WRONLY | os.O_CREAT), "wb") as file:
        if content:
            os.posix_fallocate(file.fileno(), 0, len(content))  # or else a full disk would leave half of a text
        file.write(content)
        file.truncate()


def _start(program: str, place: str) -> None:
    quiet = subprocess.DEVNULL
    subprocess.Popen([program, place], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


if __name__ == "__main__":
    sys.exit(main())
