"""Commands and calls in processes that are forked from one that has imported what they need, and has computed nothing.

`python -m tests.forks MODULE…` reads one a line, and answers each with a line when its process has ended.
"""

import gc
import importlib
import json
import os
import pickle
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

from tests.composed import composed, plain, remember_parts

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "lightning", "transformers", "ray", "vllm"}


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    said: str
    """Everything on its standard output and error."""
    heavy: set[str]
    """The heavy libraries that it had imported."""


class Forks:
    """A process that imports some modules once, and is forked for every command; what they say is in a directory."""

    def __init__(self, modules: Sequence[str], directory: Path) -> None:
        self._output, self._work = directory / "said", directory / "call"
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", *modules],
            cwd=ROOT,
            env=environment() | {"PYTHONUTF8": "1"},  # or a program would start itself again, which forks cannot
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)  # with a command that hangs, if one does
        self._server.communicate()

    def run(self, words: Sequence[str]) -> Ended:
        """Run a program of ours with its arguments, as `python PROGRAM ARGUMENTS` does."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([str(self._output), *words]) + "\n")
        self._server.stdin.flush()
        try:
            code, heavy = json.loads(self._server.stdout.readline())
        except BaseException:  # its time was over: the answer would be taken for that to the next command
            self._server.kill()
            raise
        return Ended(code, self._output.read_text(encoding="utf-8"), set(heavy))

    def call(self, work: Callable[..., None], *arguments: object) -> None:
        """Call a function of a module, to its good end."""
        self._work.write_bytes(pickle.dumps((work, arguments)))
        ended = self.run([str(self._work)])
        assert ended.code == 0, ended.said


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("ARPO_", "RAY_ADDRESS"))}


def serve() -> None:
    """Fork for every command, and wait for its end."""
    for line in sys.stdin:
        output, *words = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            play(Path(output), words, writer)
        os.close(writer)
        with os.fdopen(reader) as heavy:
            loaded = json.loads(heavy.read() or "[]")
        _, status = os.waitpid(child, 0)
        sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(status), loaded]) + "\n")
        sys.stdout.flush()


def play(output: Path, words: Sequence[str], writer: int) -> NoReturn:
    """Be a fresh process with this command line; the heavy libraries that it has imported go into a pipe."""
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(descriptor, standard)
    sys.argv = list(words)
    sys.path[0] = str(ROOT)
    try:
        if words[0].endswith(".py"):
            runpy.run_path(words[0], run_name="__main__")
        else:
            work, arguments = pickle.loads(Path(words[0]).read_bytes())
            work(*arguments)
    finally:
        os.write(writer, json.dumps(sorted(HEAVY & set(sys.modules))).encode())
    sys.exit()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    remember_parts()
    for experiment in ("smoke", "arpo_miniwob", "warmstart_fake"):
        plain(composed(f"experiment={experiment}"))
    gc.freeze()  # what a collection of garbage looks at is copied
    serve()
