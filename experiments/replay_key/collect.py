"""Replay by task and by page in numbers: `python experiments/replay_key/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.measures import Measure, count_of, mean_of  # noqa: E402
from experiments.small import ALL_FAILED, COLUMNS, EVALUATED, MINUTES, SMALL, TRAINED  # noqa: E402
from experiments.study import Arm, collect  # noqa: E402

TASK = Arm("same task", SMALL, ("tasks=miniwob_128",))
"""The runs of the study `subset`."""
PAGE = Arm("same page", SMALL, ("replay.buffer.key=domain", "tasks=miniwob_128"))
ARMS = (TASK, PAGE)
SEEDS = (0, 1, 2)
MEASURES = (
    *EVALUATED,
    TRAINED,
    ALL_FAILED,
    Measure("degenerate", "groups without a signal before replay", mean_of("group/degenerate")),
    Measure("injected", "injections an iteration, of 8 groups", count_of("replay/injected"), digits=2),
    MINUTES,
)


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, COLUMNS, arguments)


if __name__ == "__main__":
    main()
