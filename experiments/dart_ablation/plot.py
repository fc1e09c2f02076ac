"""Curves of the arms from results.csv: `python experiments/dart_ablation/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import save  # noqa: E402

PANELS = (
    Panel("success", "training success (%)", 100),
    Panel("episodes", "episodes an iteration"),
    Panel("steps", "steps an episode"),
)


if __name__ == "__main__":
    save(HERE, PANELS, "Curation on uneven MiniWoB++ tasks")
