"""Curves and bars of base, GRPO and ARPO: `python experiments/generalisation/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import Bars, of_seeds, save  # noqa: E402
from experiments.generalisation.collect import ARMS, PAPER, SHOWN  # noqa: E402
from experiments.small import LISTS  # noqa: E402

PANELS = (Panel("success", "training success (%)", 100),)


def paper() -> dict[str, dict[str, list[float]]]:
    """The paper's numbers by arm, in the order in which ours have their colours."""
    lists = {"32 training tasks": 0, "96 others": 1}
    values = [*PAPER.values()]
    at = {arm.name: place for place, arm in enumerate(SHOWN)}
    return {arm.name: {words: [values[row][at[arm.name]]] for words, row in lists.items()} for arm in ARMS}


if __name__ == "__main__":
    ours = of_seeds(HERE, {arm.name: arm.name for arm in ARMS}, LISTS)
    bars = (Bars("success after the last update (%)", ours), Bars("the paper, OSWorld (%)", paper()))
    save(HERE, PANELS, "What of training holds elsewhere", bars)
