"""Curves of the arms from results.csv: `python experiments/dart_miniwob/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.against_arpo import PANELS  # noqa: E402
from experiments.curves import save  # noqa: E402

if __name__ == "__main__":
    save(HERE, PANELS, "DART and ARPO on MiniWoB++")
