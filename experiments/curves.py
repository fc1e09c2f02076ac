"""Curves of the arms of a study from its results.csv: a panel a column, the mean and a band of one standard error."""

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

STYLES = (("#0072B2", "--"), ("#D55E00", "-"), ("#009E73", "-."), ("#CC79A7", ":"), ("#000000", "-"))
"""Okabe and Ito's colours, which colour-blind readers tell apart; the strokes differ too."""


def read_curves(path: Path, column: str) -> dict[str, dict[int, list[float]]]:
    """Return the values of all seeds, by arm and iteration; what was not measured is left out."""
    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row[column]:
                curves[row["arm"]][int(row["iteration"])].append(float(row[column]))
    return curves


def save(folder: Path, panels: Mapping[str, tuple[str, float]], title: str) -> None:
    """Write plot.png into the folder of a study.

    Args:
        folder: Has results.csv.
        panels: By column, the label of the axis and the factor to its unit.
        title: Of the picture.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.8), layout="constrained", squeeze=False)
    for panel, (column, (label, factor)) in zip(axes[0], panels.items(), strict=True):
        curves = read_curves(folder / "results.csv", column)
        for (arm, values), (color, stroke) in zip(curves.items(), STYLES, strict=False):
            iterations = sorted(values)
            means = [factor * fmean(values[iteration]) for iteration in iterations]
            errors = [factor * _standard_error(values[iteration]) for iteration in iterations]
            seeds = max(map(len, values.values()))
            panel.plot(iterations, means, stroke, color=color, linewidth=1.8, label=f"{arm} ({seeds} seeds)")
            low, high = ([mean + sign * error for mean, error in zip(means, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(iterations, low, high, color=color, alpha=0.2, linewidth=0)
        panel.set(xlabel="iteration", ylabel=label)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{title}: mean ± standard error over seeds", fontsize=11)
    figure.savefig(folder / "plot.png", dpi=150)
    plt.close(figure)


def _standard_error(values: list[float]) -> float:
    """Return s / sqrt(n); 0 for one value, which says nothing about its error."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
