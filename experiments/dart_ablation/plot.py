"""Curves of the arms from results.csv: `python experiments/dart_ablation/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.curves import save  # noqa: E402

PANELS = {
    "success": ("training success (%)", 100),
    "episodes": ("episodes an iteration", 1),
    "steps": ("steps an episode", 1),
}


if __name__ == "__main__":
    save(HERE, PANELS, "Curation on uneven MiniWoB++ tasks")
