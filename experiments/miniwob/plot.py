"""Success before and after training, and its curve: `python experiments/miniwob/plot.py` writes plot.png."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel, draw  # noqa: E402
from experiments.curves import Bars  # noqa: E402
from experiments.miniwob.collect import LISTS  # noqa: E402

PHASES = {"base": "warm start", "final": "after training"}
PANELS = (Panel("success", "success of the sampled episodes (%)", 100),)


def bars(success: dict[str, Any]) -> Bars:
    """Success on every task list before and after training, a dot a seed."""
    values = {
        words: {LISTS[name]: [row[phase] for row in success[name]["seeds"]] for name in LISTS if success[name]}
        for phase, words in PHASES.items()
    }
    return Bars("success in an evaluation (%)", values)


def main() -> None:
    summary = json.loads((HERE / "summary.json").read_text(encoding="utf-8"))
    with (HERE / "results.csv").open(newline="", encoding="utf-8") as file:
        rows = [row | {"arm": "ARPO, mean of the seeds"} for row in csv.DictReader(file)]
    title = "A tiny agent on sixteen MiniWoB++ pages, from screenshots"
    draw(rows, PANELS, title, HERE / "plot.png", [bars(summary["success"])])


if __name__ == "__main__":
    main()
