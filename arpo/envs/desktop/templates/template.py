"""Templates of tasks: each draws instances without end, with a solution, near-misses and a checker of the result.

To add one, write a function from `Draw` to `Instance` in the file of its application and name it in that file's
`TEMPLATES`. Scripts have the format of `arpo.envs.guest.certificate`.
"""

import base64
import io
import logging
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from arpo.envs.guest.client import Guest, HangingProgramError

log = logging.getLogger(__name__)

Draw = random.Random
"""The random numbers of one instance."""
HOME = "/home/user"
LARGEST = 2**20
"""Bytes of a file that a checker reads."""
COMPLETE = "complete"
"""Behind an archive all of which could be read."""


class Home:
    """The home directory of a guest, as a checker reads it when the agent has ended.

    Args:
        guest: Whose files are read.
    """

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def content(self, path: str) -> bytes:
        """Return a file's content; empty where there is no file, or a larger one than tasks have."""
        content = self._guest.file(f"{HOME}/{path}") or b""
        return content if len(content) <= LARGEST else b""

    def text(self, path: str) -> str:
        """Return a file's text; empty where there is no file."""
        return self.content(path).decode(errors="replace")

    def tree(self, folder: str) -> dict[str, bytes]:
        """Return the contents of all files below a folder by path; a folder ends in `/` and has none, a link, a pipe
        and the like in `@`.

        Empty where there is no such folder, something in it that cannot be read, or more than 200 kB.
        """
        return self._entries(f"tar -C {HOME}/{folder} -c .")

    def unpacked(self, archive: str) -> dict[str, bytes]:
        """Return what is in a compressed tar archive, as `tree` does; empty where it is none, or damaged."""
        return self._entries(f'd=$(mktemp -d) && tar -C "$d" -xzf {HOME}/{archive} && tar -C "$d" -c .')

    def output(self, command: str) -> str:
        """Return what a shell command of the user writes; nothing where it does not end."""
        try:
            return self._guest.execute(command, shell=True).output
        except HangingProgramError as error:  # such as one that reads a pipe in the place of a file
            log.info("a checker reads nothing: %s", error)
            return ""

    def _entries(self, command: str) -> dict[str, bytes]:
        """Return the entries of the tar archive that a command writes, if it has met no obstacle."""
        packed = self.output(f"{{ {command} && printf {COMPLETE}; }} | base64 -w0")
        try:
            content = base64.b64decode(packed)
            if not content.endswith(COMPLETE.encode()):
                return {}
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                return dict(_entry(archive, member) for member in archive.getmembers() if member.name != ".")
        except (tarfile.TarError, ValueError):
            return {}


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, bytes]:
    name = member.name.removeprefix("./")
    if member.isdir():
        return f"{name}/", b""
    file = archive.extractfile(member) if member.isreg() else None
    return (f"{name}@", b"") if file is None else (name, file.read())


@dataclass(frozen=True, slots=True)
class Instance:
    """One task of a template."""

    instruction: str
    launch: tuple[str, ...]
    """The program that is on the screen when the episode begins; `~` is the home directory."""
    window: str
    """A part of its window's title."""
    done: Callable[[Home], bool]
    """Whether the task is solved; it reads results and not the screen."""
    solution: tuple[str, ...]
    near_misses: Mapping[str, tuple[str, ...]]
    """At least two, by what is wrong with them."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by path below the home directory; a path that ends in `/` is a folder."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task.

    Attributes:
        name: `APPLICATION/KIND`, such as `files/rename-a-file`.
        draw: Makes an instance of random numbers.
    """

    name: str
    draw: Callable[[Draw], Instance]

    @property
    def application(self) -> str:
        """The application, or `several`."""
        return self.name.partition("/")[0]

    def instance(self, seed: int) -> Instance:
        """Return the instance of a seed, the same one each time."""
        return self.draw(random.Random(f"{self.name}/{seed}"))


def templates_of(module_name: str, functions: tuple[Callable[[Draw], Instance], ...]) -> dict[str, Template]:
    """Return the templates of a file, by name: its functions `rename_a_file` are called `rename-a-file`."""
    application = module_name.rpartition(".")[2]
    names = [f"{application}/{function.__name__.replace('_', '-')}" for function in functions]
    return {name: Template(name, function) for name, function in zip(names, functions, strict=True)}
