"""All runs of a study, one arm after another: `python experiments/run.py STUDY [--at-once 2]`.

Given again, it goes on where it was stopped: runs that have ended are left alone. The first run has nothing beside it,
because it makes the warm start that the others share.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # a script finds only what lies beside it

from experiments.studies import STUDIES  # noqa: E402
from experiments.study import ROOT  # noqa: E402


def commands(study: str) -> list[list[str]]:
    """Return the words of every run of a study, one run a command: all arms of a seed before those of the next."""
    chosen = STUDIES[study]
    return [
        [sys.executable, *shlex.split(arm.command([seed]))[1:]]
        for seed in chosen.seeds
        for arm in chosen.arms
        if seed in (arm.seeds or chosen.seeds)
    ]


def run(command: Sequence[str]) -> bool:
    """Return whether a run came to its end."""
    print(" ".join(command[1:]), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, help="a folder of experiments/")
    parser.add_argument("--at-once", type=int, default=1, help="so many runs at the same time")
    options = parser.parse_args(arguments)
    first, *others = commands(options.study)
    with ThreadPoolExecutor(options.at_once) as pool:  # a thread that Ctrl-C does not reach lets a run end by itself
        ended = [pool.submit(run, first).result(), *pool.map(run, others)]
    print(f"{sum(ended)} of {len(ended)} runs have ended")
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
