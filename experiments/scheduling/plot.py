"""Utilisation over the number of environments: `python experiments/scheduling/plot.py` writes plot.png."""

import csv
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
COLORS = {"lock-step": "#555555", "decoupled, lag 2": "#0072B2", "decoupled, lag 4": "#D55E00"}
FIGURES = {"leased": "leased to an episode (%)", "acting": "acting (%)"}


def read_curves(path: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Points of environments and percent, by figure and schedule."""
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {name: defaultdict(list) for name in FIGURES}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["command"] != "environments":
                continue
            schedule = f"{row['schedule']}, lag {row['lag']}" if row["lag"] != "0" else row["schedule"]
            for name in FIGURES:
                curves[name][schedule].append((int(row["environments"]), 100 * float(row[name])))
    return curves


def main() -> None:
    curves = read_curves(HERE / "results.csv")
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for axes, (name, label) in zip(panels, FIGURES.items(), strict=True):
        for schedule, points in curves[name].items():
            axes.plot(*zip(*sorted(points), strict=True), color=COLORS[schedule], marker="o", ms=4, label=schedule)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="environments", title=label, ylim=(0, 100))
        axes.xaxis.set_major_formatter(mpl.ticker.ScalarFormatter())
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of the environments' time (%)")
    panels[0].legend(frameon=False)
    figure.savefig(HERE / "plot.png", dpi=150)


if __name__ == "__main__":
    main()
