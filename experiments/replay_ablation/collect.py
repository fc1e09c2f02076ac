"""ARPO against GRPO in numbers: `python experiments/replay_ablation/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison import compare as of  # noqa: E402
from arpo.apps.comparison.compare import FINAL, Comparison, Measure, rows  # noqa: E402
from arpo.apps.comparison.curves import Panel  # noqa: E402
from arpo.apps.comparison.runs import SUCCESS  # noqa: E402
from arpo.apps.comparison.words import origin, percent, runs, table, written  # noqa: E402
from arpo.evaluation.intervals import Interval  # noqa: E402
from experiments.curves import save  # noqa: E402
from experiments.study import (  # noqa: E402
    ROOT,
    Arm,
    bootstrap_interval,
    collect_options,
    compare_arms,
    origin_of,
    paired,
    runs_of,
    write_block,
    write_study,
)

ARMS = (Arm("GRPO", "replay_ablation", ("replay=off",)), Arm("ARPO", "replay_ablation", ("replay=on",)))
FINAL_SUCCESS = Measure("final_success", f"success at the end (last {FINAL} iterations)", of.final(SUCCESS))
MEASURES = (
    Measure("first_success", "success before training (first iteration)", of.first_success),
    FINAL_SUCCESS,
    Measure("evaluated_success", "success in the evaluation after it", of.evaluated("in_domain")),
    Measure("all_failed", "all-failed groups, whole run", of.mean_of("group/all_failed")),
    Measure("final_all_failed", f"all-failed groups, last {FINAL} iterations", of.final("group/all_failed")),
    Measure("injected_per_iteration", "injections an iteration", of.count_of("replay/injected"), digits=2),
)
COLUMNS = {
    "success": SUCCESS,
    "all_failed": "group/all_failed",
    "injected": lambda line: line.get("replay/injected") or 0.0,  # GRPO has no buffer and injects nothing
}
PANELS = (
    Panel("success", "training success (%)", 100),
    Panel("all_failed", "groups that failed as a whole (%)", 100),
    Panel("injected", "trajectories injected (per iteration)"),
)


def measured(outputs: Path) -> Comparison:
    """The runs of both arms that came to their end."""
    return compare_arms(outputs, ARMS, MEASURES, against="GRPO")


def lines(comparison: Comparison) -> list[dict[str, Any]]:
    """One row a run and iteration, ARPO first."""
    return rows(sorted(comparison.arms, key=lambda arm: arm.name), COLUMNS)


def summarize(comparison: Comparison) -> dict[str, Any]:
    """Everything that the README says, ARPO first."""
    arms = sorted(comparison.arms, key=lambda arm: arm.name)
    return {
        "final_iterations": FINAL,
        "budget_iterations": max(run.budget for arm in arms for run in arm.runs.values()),
        "arms": {
            arm.name: {"seeds": len(arm.runs)} | {one.key: comparison.mean(arm, one.key) for one in MEASURES}
            for arm in arms
        },
        "difference": difference(comparison, "final_success"),
        "evaluated_difference": difference(comparison, "evaluated_success"),
        "runs": sorted(runs_of(comparison), key=lambda run: run["arm"]),
        "left_out": list(comparison.left_out),
        "provenance": origin_of(comparison),
    }


def difference(comparison: Comparison, key: str) -> dict[str, Any] | None:
    """ARPO minus GRPO in one measure, paired by seed; None where no seed has both."""
    found = paired(comparison, "ARPO", key)
    return None if found is None else found | {"bootstrap": asdict(bootstrap_interval(found["values"]))}


# --- words ----------------------------------------------------------------------------------------------------------


def report(comparison: Comparison) -> str:
    """The measured block of this folder's README."""
    names = [arm.name for arm in comparison.arms]
    means = [
        [one.words, *(written(one, comparison.mean(arm, one.key)) for arm in comparison.arms)] for one in MEASURES
    ]
    means.append(["seeds", *(str(len(arm.runs)) for arm in comparison.arms)])
    parts = [
        verdict(summarize(comparison)),
        table(["mean over seeds", *names], means),
        table(["seed", *names], runs(comparison, FINAL_SUCCESS)[1:]),
        origin(origin_of(comparison)),
    ]
    if comparison.left_out:
        parts.append("Left out: " + "; ".join(comparison.left_out) + ".")
    return "\n\n".join(parts)


def verdict(summary: dict[str, Any]) -> str:
    """What came out, in a sentence or two."""
    gain = summary["difference"]
    if gain is None:
        return "No seed has both arms yet, so nothing can be compared."
    student, bootstrap = Interval(**gain["student"]), Interval(**gain["bootstrap"])
    text = (
        f"After {summary['budget_iterations']} iterations ARPO minus GRPO is **{student.points()}** (mean over "
        f"{len(gain['seeds'])} paired seeds of the success in the last {summary['final_iterations']} iterations, "
        f"95 % t interval)."
    )
    if bootstrap.low is not None and bootstrap.high is not None:
        text += f" Bootstrap interval: [{100 * bootstrap.low:+.1f}, {100 * bootstrap.high:+.1f}]."
    if summary["evaluated_difference"] is not None:
        evaluated_gain = Interval(**summary["evaluated_difference"]["student"])
        text += f" In the evaluation after the last update the difference is {evaluated_gain.points()}."
    if student.low is None or student.low <= 0:
        text += " The t interval does not exclude zero: **this does not show that replay helps here.**"
    elif student.mean < 0.05:
        text += " The gain is smaller than the 5 points that were expected."
    return text


def headline(summary: dict[str, Any]) -> str:
    """The measured block of the project's README."""
    gain = summary["difference"]
    if gain is None:
        return "Not measured yet."
    grpo, arpo = (summary["arms"][name]["final_success"] for name in ("GRPO", "ARPO"))
    return (
        f"On sparse MiniWoB++ tasks GRPO ends at {percent(grpo)} and ARPO at {percent(arpo)}: "
        f"{Interval(**gain['student']).points()}, 95 % interval, {len(gain['seeds'])} paired seeds\n"
        "([study](experiments/replay_ablation/README.md))."
    )


# --- files ----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = collect_options(__doc__, "", arguments)
    comparison = measured(options.runs)
    write_study(HERE, lines(comparison), summarize(comparison))
    save(HERE, PANELS, "Replay on sparse MiniWoB++ tasks")
    print(report(comparison))
    if options.write:
        write_block(HERE / "README.md", report(comparison))
        write_block(ROOT / "README.md", headline(summarize(comparison)), name="measured replay_ablation")


if __name__ == "__main__":
    main()
