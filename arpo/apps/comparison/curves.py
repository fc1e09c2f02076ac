"""Curves of arms over iterations: a panel a metric, the mean over seeds in a band of one standard error."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes half a second, and only pictures need it
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
"""Okabe and Ito's colours, which colour-blind readers distinguish; the strokes differ too."""
STROKES = ("--", "-", "-.", ":")
CROWD = 6
"""Arms. Where there are more, their names stand beside the picture, and errors would hide the curves."""

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the pictures beside each other."""

    column: str
    """Of the rows."""
    label: str
    """Of the vertical axis."""
    factor: float = 1.0
    """From the values to the unit of the axis; 100 makes percent, and an axis from 0 to 100."""


def standard_error(values: Sequence[float]) -> float:
    """Return s / sqrt(n); 0 for one value, which has none."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def curves(rows: Rows, column: str) -> dict[str, dict[int, list[float]]]:
    """Return the values of all seeds by arm and iteration, without what is None, empty or no number."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        value = row.get(column)
        if value not in (None, "") and math.isfinite(float(value)):
            found[row["arm"]][int(row["iteration"])].append(float(value))
    return {arm: dict(sorted(values.items())) for arm, values in found.items()}


def draw(
    rows: Rows, panels: Iterable[Panel], title: str, path: Path, beside: Sequence[Callable[["Axes"], None]] = ()
) -> None:
    """Draw a PNG with a panel for each metric, from left to right, and others `beside` them on further axes.

    The rows are one a run and iteration, with `arm`, `iteration` and the columns.
    """
    import matplotlib as mpl

    mpl.use("Agg")  # a file needs no display
    import matplotlib.pyplot as plt

    rows, panels = list(rows), list(panels)
    count = len(panels) + len(beside)
    crowded = len({row["arm"] for row in rows}) > CROWD
    size = (7.5 * count, 4.4) if crowded else (4.4 * count, 3.8)
    figure, axes = plt.subplots(1, count, figsize=size, layout="constrained", squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=False):
        _draw_curves(axis, rows, panel, with_errors=not crowded)
    for axis, picture in zip(axes[0][len(panels) :], beside, strict=True):
        picture(axis)
    for axis in axes[0]:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    if crowded:
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    elif axes[0][0].lines:
        axes[0][0].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{title}: mean {'' if crowded else '± standard error '}over seeds", fontsize=11)
    figure.savefig(path, dpi=150, format="png")
    plt.close(figure)


def _draw_curves(axis: "Axes", rows: Sequence[Mapping[str, Any]], panel: Panel, *, with_errors: bool) -> None:
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for arm, curve in curves(rows, panel.column).items():
        number, seeds = arms.index(arm), max(map(len, curve.values()))
        color, stroke = COLORS[number % len(COLORS)], STROKES[number % len(STROKES)]
        means = [panel.factor * fmean(values) for values in curve.values()]
        label = f"{arm} ({seeds} seed{'s' * (seeds != 1)})"
        axis.plot([*curve], means, stroke, color=color, linewidth=1.8, label=label)
        if with_errors:
            errors = [panel.factor * standard_error(values) for values in curve.values()]
            low, high = ([mean + sign * e for mean, e in zip(means, errors, strict=True)] for sign in (-1, 1))
            axis.fill_between([*curve], low, high, color=color, alpha=0.2, linewidth=0)
    axis.set(xlabel="iteration", ylabel=panel.label)
    axis.locator_params(axis="x", integer=True)
    axis.set_ylim(0, 100 if panel.factor == 100 else None)
