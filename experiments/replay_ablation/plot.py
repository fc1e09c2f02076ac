"""Curves of both arms from results.csv: `python experiments/replay_ablation/plot.py` writes plot.png."""

import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).resolve().parent

STYLES = {"GRPO": ("#0072B2", "--"), "ARPO": ("#D55E00", "-")}
"""Okabe and Ito's blue and vermilion, which colour-blind readers tell apart; the strokes differ too."""
PANELS = {
    "success": ("training success (%)", 100),
    "all_failed": ("groups that failed as a whole (%)", 100),
    "injected": ("trajectories injected (per iteration)", 1),
}

Curves = dict[str, dict[int, list[float]]]


def read_curves(path: Path, column: str) -> Curves:
    """Values of every seed, by arm and iteration."""
    curves: Curves = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            points = curves.setdefault(row["arm"], defaultdict(list))
            points[int(row["iteration"])].append(float(row[column]))
    return curves


def standard_error(values: list[float]) -> float:
    """s / sqrt(n); 0 for one value, which says nothing about its error."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def draw(axes: Axes, curves: Curves, *, factor: float) -> None:
    """A line through the means and a band of one standard error, for each arm."""
    for arm, (color, stroke) in STYLES.items():
        if arm not in curves:
            continue
        iterations = sorted(curves[arm])
        means = [factor * fmean(curves[arm][iteration]) for iteration in iterations]
        errors = [factor * standard_error(curves[arm][iteration]) for iteration in iterations]
        seeds = max(len(values) for values in curves[arm].values())
        axes.plot(iterations, means, stroke, color=color, linewidth=1.8, label=f"{arm} ({seeds} seeds)")
        low, high = ([mean + sign * error for mean, error in zip(means, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(iterations, low, high, color=color, alpha=0.2, linewidth=0)


def main() -> None:
    figure, panels = plt.subplots(1, len(PANELS), figsize=(13, 3.8), layout="constrained")
    for axes, (column, (label, factor)) in zip(panels, PANELS.items(), strict=True):
        draw(axes, read_curves(HERE / "results.csv", column), factor=factor)
        axes.set(xlabel="iteration", ylabel=label)
        axes.set_ylim(0, 100 if factor == 100 else None)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.suptitle("Replay on sparse MiniWoB++ tasks: mean ± standard error over seeds", fontsize=11)
    figure.savefig(HERE / "plot.png", dpi=150)


if __name__ == "__main__":
    main()
