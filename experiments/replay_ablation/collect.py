"""ARPO against GRPO in numbers: `python experiments/replay_ablation/collect.py [outputs/replay_ablation] --write`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.study import (  # noqa: E402
    ROOT,
    Interval,
    Run,
    bootstrap_interval,
    collect_options,
    origin,
    percent,
    points,
    provenance,
    read_runs,
    t_interval,
    table,
    write_block,
    write_study,
)

ARMS = {"on": "ARPO", "off": "GRPO"}
FINAL = 5
"""Iterations at the end of a run whose mean is its final success: one iteration has only 64 episodes."""


def choose(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the complete runs of both arms, and the names of the runs that were left out, with the reason.

    Raises:
        ValueError: If runs differ in more than arm and seed, or one stands twice, or none is left.
    """
    chosen, left_out = [], []
    for run in runs:
        if run.overrides.get("replay") not in ARMS:
            left_out.append(f"{run.directory.name}: says no arm, replay=on or replay=off")
        elif not run.is_complete:
            left_out.append(f"{run.directory.name}: {len(run.iterations)} of {run.budget} iterations")
        else:
            chosen.append(run)
    if not chosen:
        raise ValueError("no complete run: " + "; ".join(left_out))
    rest = {str({k: v for k, v in run.overrides.items() if k != "replay"}) + f" {run.budget}" for run in chosen}
    if len(rest) > 1:
        raise ValueError(
            f"the runs differ in more than arm and seed: {sorted(rest)}; put each study into its own folder"
        )
    keys = [(arm(run), run.seed) for run in chosen]
    if len(keys) > len(set(keys)):
        raise ValueError(f"an arm has a seed twice: {sorted(keys)}")
    return sorted(chosen, key=lambda run: (arm(run), run.seed)), left_out


def arm(run: Run) -> str:
    """The name of the method that a run used."""
    return ARMS[run.overrides["replay"]]


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a run and iteration; GRPO has no buffer and injects nothing."""
    return [
        {
            "arm": arm(run),
            "seed": run.seed,
            "iteration": line["step"],
            "success": line["rollout/success_rate"],
            "all_failed": line["group/all_failed"],
            "injected": line.get("replay/injected") or 0.0,
        }
        for run in runs
        for line in run.iterations
    ]


def summarize(runs: Sequence[Run], left_out: Sequence[str]) -> dict[str, Any]:
    """Everything that the README says."""
    per_run = [
        {
            "arm": arm(run),
            "seed": run.seed,
            "first_success": run.iterations[0]["rollout/success_rate"],
            "final_success": run.mean("rollout/success_rate", last=FINAL),
            "evaluated_success": evaluated(run),
            "all_failed": run.mean("group/all_failed"),
            "final_all_failed": run.mean("group/all_failed", last=FINAL),
            "injected_per_iteration": run.mean("replay/injected"),
        }
        for run in runs
    ]
    arms = {}
    for name in sorted({row["arm"] for row in per_run}):
        of_arm = [row for row in per_run if row["arm"] == name]
        numbers = [key for key in of_arm[0] if key not in ("arm", "seed")]
        arms[name] = {"seeds": len(of_arm)} | {key: mean_or_none([row[key] for row in of_arm]) for key in numbers}
    return {
        "final_iterations": FINAL,
        "budget_iterations": runs[0].budget,
        "arms": arms,
        "difference": difference(per_run, "final_success"),
        "evaluated_difference": difference(per_run, "evaluated_success"),
        "runs": per_run,
        "left_out": list(left_out),
        "provenance": provenance(runs),
    }


def evaluated(run: Run) -> float | None:
    """Success on the training tasks after the last update, None where the run did not evaluate."""
    return run.evaluations[max(run.evaluations)].get("in_domain") if run.evaluations else None


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """The mean, None where a value is missing."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def difference(per_run: Sequence[dict[str, Any]], measure: str) -> dict[str, Any] | None:
    """ARPO minus GRPO in one measure, paired by seed; None where no seed has both."""
    values = {(row["arm"], row["seed"]): row[measure] for row in per_run if row[measure] is not None}
    seeds = sorted(seed for name, seed in values if name == "ARPO" and ("GRPO", seed) in values)
    if not seeds:
        return None
    gains = [values["ARPO", seed] - values["GRPO", seed] for seed in seeds]
    return {
        "seeds": seeds,
        "values": gains,
        "student": asdict(t_interval(gains)),
        "bootstrap": asdict(bootstrap_interval(gains)),
    }


# --- words ----------------------------------------------------------------------------------------------------------


def report(summary: dict[str, Any]) -> str:
    """The measured block of this folder's README."""
    parts = [verdict(summary), arm_table(summary), seed_table(summary), origin(summary["provenance"])]
    if summary["left_out"]:
        parts.append("Left out: " + "; ".join(summary["left_out"]) + ".")
    return "\n\n".join(parts)


def verdict(summary: dict[str, Any]) -> str:
    """What came out, in a sentence or two."""
    gain = summary["difference"]
    if gain is None:
        return "No seed has both arms yet, so nothing can be compared."
    student, bootstrap = Interval(**gain["student"]), Interval(**gain["bootstrap"])
    text = (
        f"After {summary['budget_iterations']} iterations ARPO minus GRPO is **{points(student)}** (mean over "
        f"{len(gain['seeds'])} paired seeds of the success in the last {summary['final_iterations']} iterations, "
        f"95 % t interval)."
    )
    if bootstrap.low is not None and bootstrap.high is not None:
        text += f" Bootstrap interval: [{100 * bootstrap.low:+.1f}, {100 * bootstrap.high:+.1f}]."
    if summary["evaluated_difference"] is not None:
        evaluated_gain = Interval(**summary["evaluated_difference"]["student"])
        text += f" In the evaluation after the last update the difference is {points(evaluated_gain)}."
    if student.low is None or student.low <= 0:
        text += " The t interval does not exclude zero: **this does not show that replay helps here.**"
    elif student.mean < 0.05:
        text += " The gain is smaller than the 5 points that were expected."
    return text


def arm_table(summary: dict[str, Any]) -> str:
    """A row for each measure, a column for each arm."""
    arms = [name for name in ("GRPO", "ARPO") if name in summary["arms"]]
    values = [summary["arms"][name] for name in arms]
    measures = [
        ("success before training (first iteration)", "first_success", percent),
        (f"success at the end (last {summary['final_iterations']} iterations)", "final_success", percent),
        ("success in the evaluation after it", "evaluated_success", percent),
        ("all-failed groups, whole run", "all_failed", percent),
        (f"all-failed groups, last {summary['final_iterations']} iterations", "final_all_failed", percent),
        ("injections an iteration", "injected_per_iteration", lambda value: f"{value:.2f}"),
        ("seeds", "seeds", str),
    ]
    return table(
        ["mean over seeds", *arms], [[words, *(show(value[key]) for value in values)] for words, key, show in measures]
    )


def seed_table(summary: dict[str, Any]) -> str:
    """Final success of every run."""
    final = {(row["arm"], row["seed"]): row["final_success"] for row in summary["runs"]}
    seeds = sorted({seed for _, seed in final})
    lines = [[str(seed), percent(final.get(("GRPO", seed))), percent(final.get(("ARPO", seed)))] for seed in seeds]
    return table(["seed", "GRPO", "ARPO"], lines)


def headline(summary: dict[str, Any]) -> str:
    """The measured block of the project's README."""
    gain = summary["difference"]
    if gain is None:
        return "Not measured yet."
    grpo, arpo = (summary["arms"][name]["final_success"] for name in ("GRPO", "ARPO"))
    return (
        f"On sparse MiniWoB++ tasks GRPO ends at {percent(grpo)} and ARPO at {percent(arpo)}: "
        f"{points(Interval(**gain['student']))}, 95 % interval, {len(gain['seeds'])} paired seeds\n"
        "([study](experiments/replay_ablation/README.md))."
    )


# --- files ----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    options = collect_options(__doc__, "replay_ablation", arguments)
    runs, left_out = choose(read_runs(options.runs))
    summary = summarize(runs, left_out)
    write_study(HERE, rows(runs), summary)
    print(report(summary))
    if options.write:
        write_block(HERE / "README.md", report(summary))
        write_block(ROOT / "README.md", headline(summary), name="measured replay_ablation")


if __name__ == "__main__":
    main()
