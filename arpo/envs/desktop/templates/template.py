"""Templates of tasks: each draws instances without end, with a solution, near-misses and a checker of the result.

To add one, write a public function from `Draw` to `Instance` in the file of its application. Scripts are as in
`arpo.envs.guest.certificate`.
"""

import base64
import io
import logging
import random
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType

from arpo.envs.guest.client import Guest, HangingProgramError

log = logging.getLogger(__name__)

Script = tuple[str, ...]
HOME = "/home/user"
SAVE = "hotkey(key='ctrl s')"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
LARGEST = 2**20
"""Bytes of a file that a checker reads."""
COMPLETE = "complete"
"""Behind an archive all of which could be read."""


class Draw(random.Random):
    """The random numbers of one instance."""

    def phrase(self, *phrasings: str) -> str:
        """Return one of several phrasings of an instruction."""
        return self.choice(phrasings)


class Home:
    """The home directory of a guest, as a checker reads it."""

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
        """Return the entries of a compressed tar archive, as `tree` does; empty where it is none, or damaged."""
        return self._entries(f'd=$(mktemp -d) && tar -C "$d" -xzf {HOME}/{archive} && tar -C "$d" -c .')

    def output(self, command: str) -> str:
        """Return the output of a shell command of the user; nothing where it does not end."""
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
                entries: dict[str, bytes] = {}
                for member in archive.getmembers():
                    if member.name != ".":
                        file = archive.extractfile(member) if member.isreg() else None
                        ending = "/" if member.isdir() else "@" if file is None else ""
                        entries[member.name.removeprefix("./") + ending] = file.read() if file else b""
                return entries
        except (tarfile.TarError, ValueError):
            return {}


@dataclass(frozen=True, slots=True)
class Instance:
    """One task of a template."""

    instruction: str
    launch: Script
    """The program that is on the screen when the episode begins; `~` is the home directory."""
    window: str
    done: Callable[[Home], bool]
    """Whether the task is solved; it reads results and not the screen."""
    solution: Script
    near_misses: Mapping[str, Script]
    """At least two, by what is wrong with them."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents by path below the home directory; a path that ends in `/` is a folder."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task."""

    name: str
    """`APPLICATION/KIND`, such as `files/rename-a-file`."""
    draw: Callable[[Draw], Instance]

    @property
    def application(self) -> str:
        """The application, or `several`."""
        return self.name.partition("/")[0]

    def instance(self, seed: int) -> Instance:
        """Return the instance of a seed, the same one each time."""
        return self.draw(Draw(f"{self.name}/{seed}"))


def templates_in(module: ModuleType) -> list[Template]:
    """Return the templates of a file: its public functions, of which `rename_a_file` is called `rename-a-file`."""
    application = module.__name__.rpartition(".")[2]
    return [
        Template(f"{application}/{name.replace('_', '-')}", each)
        for name, each in vars(module).items()
        if isinstance(each, FunctionType) and each.__module__ == module.__name__ and not name.startswith("_")
    ]


def press(keys: str, times: int = 1) -> Script:
    """Return a script that presses a key, or several at once, some times."""
    return (f"hotkey(key='{keys}')",) * times


def document(
    name: str,
    content: bytes,
    instruction: str,
    done: Callable[[bytes], bool],
    solution: Script,
    near_misses: Mapping[str, Script],
) -> Instance:
    """Return the instance of a document in LibreOffice, whose content `done` judges.

    Instruction and scripts are without saving; near-misses are saved, and one more is not.
    """
    path = f"Documents/{name}"
    return Instance(
        f"{instruction} Save the file.",
        launch=("soffice", "--norestore", f"~/{path}"),
        window=name,
        done=lambda home: done(home.content(path)),
        solution=(*solution, SAVE),
        near_misses={**{what: (*script, SAVE) for what, script in near_misses.items()}, "not saved": solution},
        files={path: content},
    )
