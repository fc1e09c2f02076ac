"""Success and injections by task and by page: `python experiments/replay_key/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel  # noqa: E402
from experiments.curves import Bars, of_seeds, save  # noqa: E402
from experiments.replay_key.collect import ARMS  # noqa: E402
from experiments.small import LISTS  # noqa: E402

PANELS = (Panel("success", "training success (%)", 100), Panel("injected", "injections an iteration"))


if __name__ == "__main__":
    ours = of_seeds(HERE, {arm.name: arm.name for arm in ARMS}, LISTS)
    save(HERE, PANELS, "Whose success may join a group of failures", [Bars("success after the last update (%)", ours)])
