"""Curves of the arms of a study from its results.csv: `plot.py` in its folder writes plot.png."""

import csv
from collections.abc import Iterable
from pathlib import Path

from arpo.display.comparison.curves import Panel, draw


def save(folder: Path, panels: Iterable[Panel], title: str) -> None:
    """Write plot.png into the folder of a study, which has results.csv."""
    with (folder / "results.csv").open(newline="") as file:
        draw(csv.DictReader(file), panels, title, folder / "plot.png")
