"""What of training holds elsewhere, in numbers: `python experiments/generalisation/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.compare import Comparison  # noqa: E402
from arpo.apps.comparison.words import DASH, percent, table  # noqa: E402
from experiments.small import (  # noqa: E402
    ALL_FAILED,
    ARPO,
    BASE,
    COLUMNS,
    EVALUATED,
    GRPO,
    LISTS,
    MINUTES,
    TRAINED,
    by_page,
)
from experiments.study import collect  # noqa: E402

ARMS = (GRPO, ARPO, BASE)
SEEDS = (0, 1, 2, 3, 4)
MEASURES = (*EVALUATED, TRAINED, ALL_FAILED, MINUTES)
SHOWN = (BASE, GRPO, ARPO)
"""In the order of the paper's figure."""
PAPER = {
    "paper: 32 training tasks of OSWorld": (0.438, 0.688, 0.8125),
    "paper: 96 other tasks of OSWorld": (0.552, 0.521, 0.563),
}
"""Figure 4 of arXiv 2505.16282: base, GRPO, ARPO."""


def beside_the_paper(comparison: Comparison) -> str:
    """The success of base, GRPO and ARPO, ours and the paper's, and ours by page."""
    arms = [next(arm for arm in comparison.arms if arm.name == shown.name) for shown in SHOWN]
    names = [arm.name for arm in arms]
    ours = [[words, *(percent(comparison.mean(arm, name)) for arm in arms)] for name, words in LISTS.items()]
    theirs = [[f"*{words}*", *map(percent, values)] for words, values in PAPER.items()]
    pages = [
        table([f"{words}, by page", *names, "ARPO - GRPO"], page_rows(comparison, name))
        for name, words in {"in_domain": "the 128 tasks", "held_out": LISTS["held_out"]}.items()
    ]
    return "\n\n".join([table(["success after the last update", *names], [*ours, *theirs]), *pages])


def page_rows(comparison: Comparison, listed: str) -> list[list[str]]:
    """A row a page: the success of base, GRPO and ARPO over all seeds; first where ARPO leads GRPO by most."""
    found = {arm.name: by_page(arm, listed) for arm in comparison.arms}
    pages = dict.fromkeys(page for of_arm in found.values() for page in of_arm)
    gains = {page: gain(found[ARPO.name].get(page), found[GRPO.name].get(page)) for page in pages}
    return [
        [page, *(percent(found[arm.name].get(page)) for arm in SHOWN), points(gains[page])]
        for page in sorted(pages, key=lambda page: (-(gains[page] or 0.0), page))
    ]


def gain(arpo: float | None, grpo: float | None) -> float | None:
    """ARPO minus GRPO; None where one of them is not known."""
    return None if arpo is None or grpo is None else arpo - grpo


def points(share: float | None) -> str:
    """A difference in points, or a dash."""
    return DASH if share is None else f"{100 * share:+.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, COLUMNS, arguments, first=beside_the_paper)


if __name__ == "__main__":
    main()
