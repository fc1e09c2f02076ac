"""Curves, and success against the number of seeds: `python experiments/seeds_a_page/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import Bars, of_seeds, save, turned  # noqa: E402
from experiments.seeds_a_page.collect import ARMS, NUMBERS  # noqa: E402

PANELS = (
    Panel("success", "training success (%)", 100),
    Panel("injected", "trajectories injected (per iteration)"),
)
COLORS = {"trained": "training tasks, last 5", "held_out": "held-out seeds", "held_out_pages": "held-out pages"}


if __name__ == "__main__":
    names = {arm.name: str(number) for arm, number in zip(ARMS, NUMBERS, strict=True)}
    bars = Bars("success by training seeds a page (%)", turned(of_seeds(HERE, names, COLORS)))
    save(HERE, PANELS, "Training seeds a page", [bars])
