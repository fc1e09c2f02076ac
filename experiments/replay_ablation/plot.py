"""Curves of both arms from results.csv: `python experiments/replay_ablation/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import save  # noqa: E402

PANELS = (
    Panel("success", "training success (%)", 100),
    Panel("all_failed", "groups that failed as a whole (%)", 100),
    Panel("injected", "trajectories injected (per iteration)"),
)


if __name__ == "__main__":
    save(HERE, PANELS, "Replay on sparse MiniWoB++ tasks")
