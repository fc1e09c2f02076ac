"""DART against ARPO on Docker desktops: `python experiments/dart_desktop32/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.against_arpo import ARPO, collect  # noqa: E402
from experiments.study import Arm  # noqa: E402

SHORT = ("iterations=24",)
ARMS = (Arm(ARPO, "arpo_desktop32", SHORT), Arm("DART", "dart_desktop32", SHORT))
SEEDS = (0, 1, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, arguments)


if __name__ == "__main__":
    main()
