"""Curves of the arms from results.csv: `python experiments/policy_lag/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import save  # noqa: E402

PANELS = (
    Panel("success", "training success (%)", 100),
    Panel("lag", "lag of a step (updates)"),
    Panel("ess", "effective sample size (%)", 100),
)


if __name__ == "__main__":
    save(HERE, PANELS, "Lags and corrections on MiniWoB++")
