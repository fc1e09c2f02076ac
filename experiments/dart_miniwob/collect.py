"""DART against ARPO on web pages: `python experiments/dart_miniwob/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.against_arpo import arms_of, collect  # noqa: E402

ARMS = arms_of("arpo_miniwob_fixed", "dart_miniwob")
SEEDS = (0, 1, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, arguments)


if __name__ == "__main__":
    main()
