"""The command that compares runs: python -m arpo compare 'outputs/replay_ablation/*'."""

import argparse
import csv
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import stdev
from typing import Any

from rich.console import Console
from rich.text import Text

from arpo.apps.comparison.arms import group, warnings
from arpo.apps.comparison.compare import Comparison, compare, rows, usual
from arpo.apps.comparison.curves import Panel, curves, draw
from arpo.apps.comparison.runs import SUCCESS, find_runs, read_runs
from arpo.apps.comparison.words import differences, means, report
from arpo.errors import ConfigError, quoted
from arpo.host.files import atomically, write_atomically
from arpo.host.terminal import print_table

log = logging.getLogger(__name__)

PANELS = (
    Panel(SUCCESS, "training success (%)", 100),
    Panel("group/all_failed", "groups that failed as a whole (%)", 100),
    Panel("replay/injected", "trajectories injected (per iteration)"),
)


def main(arguments: Sequence[str]) -> int:
    """Compare runs and return the exit status: 2 where there are arms and none can be compared."""
    asked = parser().parse_args(arguments)
    folders = find_runs(asked.runs)
    runs, unfinished = read_runs(folders)
    for metric in asked.metric:
        if runs and not any(metric in line for run in runs for line in run.iterations):
            raise ConfigError(
                f"no run has logged the metric {metric}: metrics.jsonl in a run's folder has their names"
            )
    arms, twice = group(runs)
    comparison = compare(arms, usual(runs, asked.metric), against=asked.against, left_out=[*unfinished, *twice])
    directory = asked.out or Path(os.path.commonpath([path.resolve().parent for path in folders])) / "comparison"
    write(comparison, [*PANELS, *(Panel(name, name) for name in asked.metric)], directory)
    measures = [measure for measure in comparison.measures if measure.is_compared]
    print_table([*zip(*means(comparison, measures), strict=True)], title="", caption="")
    console = Console()
    for line in differences(comparison):
        console.print(Text(quoted(line.replace("*", ""))))
    for line in [*warnings(comparison.arms), *(f"left out: {reason}" for reason in comparison.left_out)]:
        log.warning("%s", line)
    log.info("tables and curves are in %s", directory)
    return 2 if comparison.others and len(comparison.obstacles) == len(comparison.others) else 0


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    line = argparse.ArgumentParser(
        prog="python -m arpo compare",
        description="Compare finished runs: grouped by what differs in their configuration, over seeds.",
    )
    line.add_argument("runs", nargs="+", help="folders of runs, or patterns such as 'outputs/replay_ablation/*'")
    line.add_argument("--against", metavar="ARM", help="the one that others are compared with; by default the first")
    line.add_argument("--metric", action="append", default=[], help="another one to compare, as policy/entropy")
    line.add_argument("--out", type=Path, help="the folder to write; `comparison` beside the runs by default")
    return line


def write(comparison: Comparison, panels: Sequence[Panel], folder: Path) -> None:
    """Write tables and curves of a comparison into a folder."""
    lines = rows(comparison.arms, {panel.column: panel.column for panel in panels})
    runs = [
        {"arm": arm.name, "seed": seed, "run": str(run.directory)}
        | {measure.key: comparison.values[arm.name][seed][measure.key] for measure in comparison.measures}
        for arm in comparison.arms
        for seed, run in arm.runs.items()
    ]
    try:
        write_atomically(folder / "comparison.md", f"# Comparison\n\n{report(comparison)}\n")
        write_rows(folder / "runs.csv", runs)
        write_rows(folder / "summary.csv", _summary(comparison))
        known = [panel for panel in panels if curves(lines, panel.column)]
        if known:  # offline runs have no rollouts
            write_rows(folder / "curves.csv", lines)
            with atomically(folder / "curves.png") as partial:
                draw(lines, known, "Comparison", partial)
    except OSError as error:
        raise ConfigError(f"cannot write the comparison to {folder}: {error}; name a folder with --out") from error


def _summary(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one row a mean and one a difference of means, in full; `minus` names a difference's reference."""
    lines, adjusted = [], comparison.adjusted()
    for arm in comparison.arms:
        for measure in comparison.measures:
            place = {"arm": arm.name, "minus": "", "measure": measure.key}
            found = comparison.spread(arm, measure.key)
            if found is not None:
                row = place | {"seeds": found.count, "deviation": found.deviation} | asdict(found.interval)
                lines.append(row | {"p_value": None, "p_holm": None})
            gained = comparison.difference(arm, measure.key) if arm is not comparison.reference else None
            if measure.is_compared and gained is not None:
                deviation = stdev(gained.values) if len(gained.values) > 1 else None
                row = place | {"minus": comparison.reference.name, "seeds": len(gained.seeds) or "not paired"}
                p_values = {"p_value": gained.p_value, "p_holm": adjusted.get((arm.name, measure.key))}
                lines.append(row | {"deviation": deviation} | asdict(gained.interval) | p_values)
    return lines


def write_rows(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV, the names of the first one as the header."""
    with atomically(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
