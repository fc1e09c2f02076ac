"""The learning curve from results.csv: `python experiments/miniwob/plot.py` writes plot.png."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
COLOR = "#D55E00"


def read_curves(path: Path) -> dict[int, dict[int, float]]:
    """Success in percent, by seed and iteration."""
    curves: dict[int, dict[int, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            curves[int(row["seed"])][int(row["iteration"])] = 100 * float(row["success"])
    return curves


def main() -> None:
    curves = read_curves(HERE / "results.csv")
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    for seed, curve in curves.items():
        axes.plot(list(curve), list(curve.values()), color=COLOR, alpha=0.3, linewidth=1, label=f"seed {seed}")
    iterations = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    means = [fmean(curve[iteration] for curve in curves.values()) for iteration in iterations]
    axes.plot(iterations, means, color=COLOR, linewidth=2.2, label="mean")
    axes.set(xlabel="iteration", ylabel="training success (%)", ylim=(0, 100))
    axes.set_title("ARPO on sixteen MiniWoB++ pages, from screenshots", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(HERE / "plot.png", dpi=150)


if __name__ == "__main__":
    main()
