"""The files that one synchronous iteration runs through: `python -m tests.iteration_files` prints them.

It trains `experiment=smoke engine=hf` for three iterations and notes every function of `arpo/` that is called in the
second one, from its request for groups to the next request, in whatever thread. Of each file it counts the lines of
these functions, and all lines. Left out are the kinds of environments and their pool, the machine and the fleet, which
the loop knows by a protocol.
"""

import ast
import os
import runpy
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType

import arpo

ROOT = Path(arpo.__file__).parent
BESIDE = {"envs", "host", "run", "apps"}
WORDS = ["experiment=smoke", "engine=hf", "env.backend=thread", "iterations=3"]
ASKED = "RolloutCollector.take"


class Calls:
    """The functions of `arpo/` that are called between the second and the third request for groups."""

    def __init__(self) -> None:
        self.found: defaultdict[str, set[int]] = defaultdict(set)
        """First lines by file."""
        self.asked = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a function that is called, as `sys.setprofile` asks for."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        self.asked += code.co_qualname == ASKED
        if self.asked == 2:
            self.found[code.co_filename].add(code.co_firstlineno)


def lines_of(path: Path, first_lines: set[int]) -> int:
    """Return the lines of the functions that begin there; a function within one counts once."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if begin in first_lines:
                found.update(range(begin, (node.end_lineno or begin) + 1))
    return len(found)


def report(calls: Calls) -> str:
    """Return a table with a line a folder, in which each file has the number of its lines that the iteration runs."""
    folders: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for path, first_lines in ((Path(name), lines) for name, lines in calls.found.items()):
        folder = path.relative_to(ROOT).parent
        called, whole = lines_of(path, first_lines), len(path.read_text(encoding="utf-8").splitlines())
        if called and not set(folder.parts[:1]) & BESIDE:
            folders[folder.as_posix() if folder.parts else "arpo"].append((called, whole, path.stem))
    rows = sorted(folders.items(), key=lambda row: -sum(called for called, _, _ in row[1]))
    rows.append(("all", [file for _, files in rows for file in files]))
    lines = ["| folder | files, and the lines of their functions that run | together | all lines |"]
    lines += ["|---|---|--:|--:|"]
    for folder, files in rows:
        names = ", ".join(f"{name} {called}" for called, _, name in sorted(files, reverse=True))
        sums = f"{sum(called for called, _, _ in files)} | {sum(whole for _, whole, _ in files)}"
        shown = f"`{folder}/` | {names}" if folder != "all" else f"{len(files)} files |"
        lines.append(f"| {shown} | {sums} |")
    return "\n".join(lines)


def main() -> None:
    """Run the experiment and print the table."""
    calls = Calls()
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["train.py", *WORDS, f"hydra.run.dir={folder}", *sys.argv[1:]]
        threading.setprofile(calls)
        sys.setprofile(calls)
        try:
            runpy.run_path("train.py", run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    sys.stdout.write(f"{report(calls)}\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
