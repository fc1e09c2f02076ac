"""A comparison on the terminal: tables, and curves with their bands in characters."""

from collections.abc import Mapping, Sequence
from itertools import cycle

from rich.console import Console
from rich.table import Table
from rich.text import Text

from arpo.apps.comparison.compare import Comparison
from arpo.apps.comparison.curves import Curve
from arpo.apps.comparison.words import differences, spread_words
from arpo.errors import quoted

COLORS = ("blue", "red", "green", "magenta", "default")
MARKS = "●▲■◆○△"
"""Of the arms, in the order of the tables; a terminal without colours shows these."""
BAND = "░"
ROWS = 11
AXIS = 6
"""Characters of the labels at the left of the curves."""


def show(console: Console, comparison: Comparison, curves: Mapping[str, Curve], title: str) -> None:
    """Print the arms of a comparison by what they are compared in, how they differ, and some curves."""
    measures = [measure for measure in comparison.measures if measure.is_compared]
    table = Table(caption="mean ± deviation over seeds [95 % interval]")
    for name in ("arm", "seeds", *(measure.words for measure in measures)):
        table.add_column(_plain(name), overflow="fold")  # a name that is cut could be that of two arms
    for arm in comparison.arms:
        cells = [spread_words(measure, comparison.spread(arm, measure.key)) for measure in measures]
        table.add_row(*map(_plain, (arm.name, ", ".join(map(str, arm.runs)), *cells)))
    console.print(table)
    for line in differences(comparison):
        console.print(_plain(line.replace("*", "")))
    if curves:
        console.print()
        console.print(plot(curves, title, width=min(console.width, 100) - AXIS))


def _plain(text: str) -> Text:
    """Return a text in which brackets, which are markup to rich, are brackets, and nothing moves the cursor."""
    return Text(quoted(text))


def plot(curves: Mapping[str, Curve], title: str, *, width: int) -> Text:
    """Return curves in characters: a mark is a mean over seeds, a band one standard error around it.

    Args:
        curves: Of shares, by arm.
        title: Above them.
        width: Columns of the picture; an iteration has several, or several share one.
    """
    last = max(max(curve.values) for curve in curves.values())
    top = max(mean + error for curve in curves.values() for _, mean, error in curve.points())
    top = min(-(-top * 10 // 1) / 10, 1.0) or 1.0  # up to the next tenth
    canvas = [[(" ", "default")] * width for _ in range(ROWS)]
    styles = list(zip(curves.values(), cycle(COLORS), cycle(MARKS), strict=False))
    for curve, color, _ in styles:  # bands first: no band hides a mean
        _fill(canvas, curve, last, top, color)
    for curve, color, mark in styles:
        for column, mean, _ in _columns(curve, last, width):
            canvas[_row(mean, top)][column] = (mark, color)
    return _framed(canvas, title, top, last, list(zip(curves, cycle(COLORS), cycle(MARKS), strict=False)))


def _columns(curve: Curve, last: int, width: int) -> list[tuple[int, float, float]]:
    """Return column, mean and error for each column, of the iteration that falls on it."""
    known = {iteration: (mean, error) for iteration, mean, error in curve.points()}
    spots = {column: 1 + round(column * (last - 1) / max(width - 1, 1)) for column in range(width)}
    return [(column, *known[iteration]) for column, iteration in spots.items() if iteration in known]


def _row(value: float, top: float) -> int:
    return ROWS - 1 - min(max(round(value / top * (ROWS - 1)), 0), ROWS - 1)


def _fill(canvas: list[list[tuple[str, str]]], curve: Curve, last: int, top: float, color: str) -> None:
    for column, mean, error in _columns(curve, last, len(canvas[0])):
        for row in range(_row(mean + error, top), _row(mean - error, top) + 1):
            if canvas[row][column][0] == " ":
                canvas[row][column] = (BAND, color)


def _framed(
    canvas: Sequence[Sequence[tuple[str, str]]], title: str, top: float, last: int, arms: list[tuple[str, str, str]]
) -> Text:
    text = Text(f"{title}\n", style="bold")
    for number, row in enumerate(canvas):
        value = top * (ROWS - 1 - number) / (ROWS - 1)
        text.append(f"{100 * value:3.0f} % " if number % 2 == 0 else " " * AXIS, style="default")
        for character, color in row:
            text.append(character, style=f"not bold {color}")
        text.append("\n")
    width = len(canvas[0])
    text.append(" " * AXIS + "1" + f"iteration {last}".rjust(width - 1) + "\n", style="not bold default")
    for name, color, mark in arms:
        text.append(f"{' ' * AXIS}{mark} {name}\n", style=f"not bold {color}")
    return text
