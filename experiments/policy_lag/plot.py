"""Curves of the arms from results.csv: `python experiments/policy_lag/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.curves import save  # noqa: E402

PANELS = {
    "success": ("training success (%)", 100),
    "lag": ("lag of a step (updates)", 1),
    "ess": ("effective sample size (%)", 100),
}


if __name__ == "__main__":
    save(HERE, PANELS, "Lags and corrections on MiniWoB++")
