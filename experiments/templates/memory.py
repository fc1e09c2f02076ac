"""Memory and containers of the machine over the runs: `python experiments/templates/memory.py` writes memory.png.

memory.csv was written beside them, a line every 15 seconds: seconds since 1970, kB of /proc/meminfo that are not
available, running containers (`docker ps -q | wc -l`).
"""

import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent


def main() -> None:
    with (HERE / "memory.csv").open(newline="", encoding="utf-8") as file:
        rows = [tuple(map(int, row)) for row in csv.reader(file)]
    minutes = [(second - rows[0][0]) / 60 for second, _, _ in rows]
    figure, axes = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    axes.plot(minutes, [kb / 2**20 for _, kb, _ in rows], color="#0072B2", lw=1)
    axes.set(xlabel="minutes", ylabel="memory in use, all processes (GiB)", ylim=(0, None))
    containers = axes.twinx()
    containers.plot(minutes, [count for *_, count in rows], color="#D55E00", lw=0.8)
    containers.set(ylabel="containers", ylim=(0, 16))
    axes.spines["top"].set_visible(False)
    containers.spines["top"].set_visible(False)
    figure.savefig(HERE / "memory.png", dpi=110)


if __name__ == "__main__":
    main()
