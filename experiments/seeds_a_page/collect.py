"""Training seeds a page in numbers: `python experiments/seeds_a_page/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.measures import Measure, Of, count_of  # noqa: E402
from experiments.small import ALL_FAILED, COLUMNS, EVALUATED, MINUTES, TRAINED  # noqa: E402
from experiments.study import Arm, collect  # noqa: E402

NUMBERS = (1, 4, 16, 64, 256)
ARMS = tuple(Arm(f"{number} a page", "seeds_a_page", (f"tasks.train.per_page={number}",)) for number in NUMBERS)
SEEDS = (0, 1, 2)
SUBJECT = "tasks.train.*"
"""The keys by which the arms are meant to differ."""


def before(name: str) -> Of:
    """The measure of the success on a task list before the first update."""
    return lambda run: run.evaluations.get(0, {}).get(name)


MEASURES = (
    *(measure for measure in EVALUATED if measure.key.startswith("held_out")),
    Measure("base", "success on held-out seeds before training", before("held_out")),
    Measure("base_pages", "success on held-out pages before training", before("held_out_pages")),
    TRAINED,
    ALL_FAILED,
    Measure("injected", "injections an iteration", count_of("replay/injected"), digits=2),
    MINUTES,
)


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, COLUMNS, arguments, subject=SUBJECT)


if __name__ == "__main__":
    main()
