"""A comparison as text: Markdown tables, intervals, and the origin of its numbers."""

from collections.abc import Mapping, Sequence

from arpo.apps.comparison.arms import Arm, differing, merge_repeated, settings, warnings
from arpo.apps.comparison.compare import Comparison, Measure
from arpo.apps.comparison.runs import Run
from arpo.evaluation.card import table
from arpo.evaluation.intervals import Difference, Spread

DASH = "–"
LEVEL = 0.05
"""An adjusted p-value below it shows a difference."""
KEYS = 20
"""Differing keys that are listed at most."""


def percent(share: float | None) -> str:
    """Return a share in percent, or a dash where there is none."""
    return DASH if share is None else f"{100 * share:.1f} %"


def written(measure: Measure, value: float | None) -> str:
    """Return the value of a measure as its kind is written."""
    if measure.digits is None or value is None:
        return percent(value)
    return f"{value:.{measure.digits}f}"


def verdict(found: Difference, adjusted: float | None, count: int) -> str:
    """Return the verdict on one of `count` differences, by its p-value adjusted for all of them."""
    if adjusted is None:
        return "one seed shows little"
    higher = "higher" if found.interval.mean > 0 else "lower"
    shown = higher if adjusted < LEVEL else "not shown to differ"
    return shown if count == 1 else f"{shown} (p {found.p_value:.3f}, Holm of {count}: {adjusted:.3f})"


def means(comparison: Comparison, measures: Sequence[Measure]) -> list[list[str]]:
    """Return a row a measure and a column an arm, the header first: mean ± deviation and the 95 % interval."""
    rows = [["mean ± deviation over seeds [95 % interval]", *(arm.name for arm in comparison.arms)]]
    for measure in measures:
        cells = [spread_words(measure, comparison.spread(arm, measure.key)) for arm in comparison.arms]
        rows.append([measure.words, *cells])
    return [*rows, ["seeds", *(", ".join(map(str, arm.runs)) or DASH for arm in comparison.arms)]]


def spread_words(measure: Measure, found: Spread | None) -> str:
    """Return mean ± deviation and interval as a measure is written; the mean alone of one seed, a dash of none."""
    if found is None:
        return DASH
    factor, digits = (100, 1) if measure.digits is None else (1, measure.digits)
    interval = found.interval
    if found.deviation is None or interval.low is None or interval.high is None:
        return written(measure, interval.mean)
    deviation, low, high = (f"{factor * value:.{digits}f}" for value in (found.deviation, interval.low, interval.high))
    return f"{written(measure, interval.mean)} ± {deviation} [{low}, {high}]"


def differences(comparison: Comparison) -> list[str]:
    """Return a sentence for each arm and measure that is compared, and one for each arm that is not."""
    reference, adjusted = comparison.reference.name, comparison.adjusted()
    lines = []
    for arm in comparison.others:
        if arm.name in comparison.obstacles:
            lines.append(f"*{arm.name}* is not compared with *{reference}*: {comparison.obstacles[arm.name]}.")
            continue
        for measure in comparison.measures:
            if not measure.is_compared:
                continue
            found = comparison.difference(arm, measure.key)
            if found is None:
                lines.append(f"*{arm.name}*, {measure.words}: not known of one of the two.")
                continue
            paired = (
                f"{len(found.seeds)} paired seed{'s' * (len(found.seeds) != 1)} ({', '.join(map(str, found.seeds))})"
            )
            seeds = paired if found.seeds else "not paired, because they share no seed (Welch)"
            plain = f"{{:+.{measure.digits}f}}".format
            gained = found.interval.points() if measure.digits is None else found.interval.written(plain)
            shown = verdict(found, adjusted.get((arm.name, measure.key)), len(adjusted))
            lines.append(f"*{arm.name}*, {measure.words}: **{gained}**, {seeds}; {shown}.")
    return lines


def runs(comparison: Comparison, measure: Measure) -> list[list[str]]:
    """Return a row a seed and a column an arm, the header first."""
    seeds = sorted({seed for arm in comparison.arms for seed in arm.runs})
    found = [comparison.of(arm, measure.key) for arm in comparison.arms]
    header = [f"{measure.words}, seed", *(arm.name for arm in comparison.arms)]
    return [header, *([str(seed), *(written(measure, of_arm.get(seed)) for of_arm in found)] for seed in seeds)]


def settings_table(arms: Sequence[Arm]) -> list[list[str]]:
    """Return a row for each key in which the arms differ and a column an arm, the header first."""
    of_arms = [next(iter(arm.runs.values())) for arm in arms if arm.runs]
    keys = merge_repeated(differing(settings(of_arms)))
    lines = [[f"`{key}`", *values] for key, values in keys.items()]
    more = [[f"and {len(lines) - KEYS} more", *("" for _ in of_arms)]] if len(lines) > KEYS else []
    return [["what differs", *(arm.name for arm in arms if arm.runs)], *lines[:KEYS], *more]


def report(comparison: Comparison) -> str:
    """Return everything as Markdown."""
    compared = [measure for measure in comparison.measures if measure.is_compared]
    tables = [means(comparison, comparison.measures)]
    tables += [runs(comparison, compared[0])] if compared else []
    tables += [settings_table(comparison.arms)] if comparison.others else []
    parts = [
        *_listed(f"Each arm minus *{comparison.reference.name}*, with a 95 % t interval:", differences(comparison)),
        *(table(header, rows) for header, *rows in tables),
        *warnings(comparison.arms),
        origin(provenance([run for arm in comparison.arms for run in arm.runs.values()])),
        *_listed("Left out:", comparison.left_out),
    ]
    return "\n\n".join(parts)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "\n".join(f"- {line}" for line in lines)] if lines else []


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the commits, machines and days that runs came from."""
    starts = [start for run in runs for start in run.starts]
    commits = {commit for run in runs for commit in run.commits}
    return {
        "commits": sorted(commits) or ["not recorded"],
        "machines": sorted({start.machine for start in starts}) or ["not recorded"],
        "days": sorted({start.started[:10] for start in starts}) or ["not recorded"],
    }


def origin(where: Mapping[str, Sequence[str]]) -> str:
    """Return the origin of numbers as one line."""
    return (
        f"Commit {', '.join(where['commits'])}; machine: {'; '.join(where['machines'])}; {', '.join(where['days'])}."
    )
