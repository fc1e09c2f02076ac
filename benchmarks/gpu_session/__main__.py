"""Measure ARPO on one rented GPU: `prepare` here, `unpack` and `play` there; see README.md."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_session.play import ROOT, play, unpack

PARTS = ROOT / ".gpu_session"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_session", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare", help="make the parts; needs pip, npm and the network")
    command.add_argument("--parts", type=Path, default=PARTS)
    command.add_argument("--scratch", type=Path, required=True, help="a folder outside of the repository")
    command.add_argument("--screens", type=Path, help="trajectories of a run, whose screenshots the loops show")
    command = commands.add_parser("unpack", help="unpack a part where it has arrived")
    command.add_argument("part", type=Path)
    command = commands.add_parser("play", help="play the phases, each in a process of its own")
    command.add_argument("--out", type=Path, required=True, help="gets results.jsonl and log.txt")
    command.add_argument("--phases", nargs="+", help="default: all")
    command.add_argument("--smoke", action="store_true", help="a tiny model; runs on a CPU")
    command.add_argument("--seconds", type=float, default=570, help="of all phases together")
    options = vars(parser.parse_args(arguments))
    name = options.pop("command")
    if name == "prepare":
        from benchmarks.gpu_session.prepare import prepare  # needs what the other machine lacks

        return prepare(**options)
    return unpack(**options) if name == "unpack" else play(**options)


if __name__ == "__main__":
    sys.exit(main())
