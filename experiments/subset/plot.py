"""Reward, its spread, and success of both arms: `python experiments/subset/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import Bars, of_seeds, save  # noqa: E402
from experiments.small import LISTS  # noqa: E402
from experiments.subset.collect import ARMS  # noqa: E402

PANELS = (
    Panel("reward", "task reward"),
    Panel("deviation", "deviation of rewards in a group"),
    Panel("signal", "groups with a signal (%)", 100),
)


if __name__ == "__main__":
    ours = of_seeds(HERE, {arm.name: arm.name for arm in ARMS}, LISTS)
    save(HERE, PANELS, "Training on 32 tasks and on 128", [Bars("success after the last update (%)", ours)])
