"""Pictures of a study from its results.csv and summary.json: `plot.py` in its folder writes plot.png."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from arpo.apps.comparison.curves import COLORS, Panel, draw, standard_error

if TYPE_CHECKING:  # a study without pictures need not wait for it
    from matplotlib.axes import Axes

WIDTH = 0.8
"""Of the bars that stand together; 1 would touch the next ones."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A picture of bars in percent: mean and standard error over seeds, and a dot for each seed."""

    label: str
    """Of the vertical axis."""
    values: Mapping[str, Mapping[str, Sequence[float]]]
    """By colour and place on the axis: shares, one a seed."""
    top: float = 100.0
    """Of the axis, in percent."""

    def __call__(self, axis: "Axes") -> None:
        """Draw them."""
        places = list(dict.fromkeys(place for found in self.values.values() for place in found))
        width = WIDTH / max(1, len(self.values))
        for number, (name, found) in enumerate(self.values.items()):
            color = COLORS[number % len(COLORS)]
            left = (number - (len(self.values) - 1) / 2) * width
            label: str | None = name
            for place, shares in found.items():
                at, percents = places.index(place) + left, [100 * share for share in shares]
                axis.bar(at, fmean(percents), 0.9 * width, color=color, alpha=0.6, label=label)
                label = None  # one entry in the legend
                if len(percents) > 1:
                    axis.errorbar(at, fmean(percents), standard_error(percents), color="black", capsize=2, linewidth=1)
                    axis.plot([at] * len(percents), percents, ".", color=color, markersize=4)
        axis.set_xticks(range(len(places)), places, fontsize=8)
        axis.set(ylabel=self.label, ylim=(0, self.top))
        if len(self.values) > 1:
            axis.legend(frameon=False, fontsize=8)


def of_seeds(
    folder: Path, arms: Mapping[str, str], measures: Mapping[str, str]
) -> dict[str, dict[str, Sequence[float]]]:
    """Return what summary.json has of the runs of a study, a value a seed, by arm and measure.

    What no run has is left out.

    Args:
        folder: Of the study.
        arms: Their names there, each with the one in the picture.
        measures: Their keys there, each with the words in the picture.
    """
    runs = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["runs"]
    found: dict[str, dict[str, Sequence[float]]] = {}
    for run in runs:
        for key, words in measures.items():
            if run["arm"] in arms and run.get(key) is not None:
                of_arm = found.setdefault(arms[run["arm"]], {})
                of_arm[words] = [*of_arm.get(words, ()), run[key]]
    return {words: found[words] for words in arms.values() if words in found}


def turned(values: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Sequence[float]]]:
    """Return what is given by arm and measure by measure and arm."""
    found: dict[str, dict[str, Sequence[float]]] = {}
    for arm, of_arm in values.items():
        for words, shares in of_arm.items():
            found.setdefault(words, {})[arm] = shares
    return found


def save(folder: Path, panels: Iterable[Panel], title: str, bars: Sequence[Bars] = ()) -> None:
    """Write plot.png into the folder of a study, which has results.csv."""
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        draw(csv.DictReader(file), panels, title, folder / "plot.png", bars)
