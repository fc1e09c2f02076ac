"""The main job in numbers: `python experiments/miniwob/collect.py [outputs/arpo_miniwob] --write`."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.curves import Panel, draw  # noqa: E402
from arpo.apps.comparison.runs import Run, find_runs, read_run, read_runs  # noqa: E402
from arpo.apps.comparison.words import origin, percent, provenance, table  # noqa: E402
from arpo.evaluation.intervals import Interval, t_interval  # noqa: E402
from experiments.curves import Bars  # noqa: E402
from experiments.study import ROOT, collect_options, scores, write_block, write_study  # noqa: E402

LISTS = {"held_out": "held-out seeds", "in_domain": "training tasks", "held_out_pages": "held-out pages"}
PHASES = ("rollout", "update", "sync")
PANELS = (Panel("success", "success of the sampled episodes (%)", 100),)


def choose(runs: Sequence[Run], unfinished: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Return one run a seed, without any other override, and what was left out, with the reason.

    `make train` is seed 0 in the folder `default`; where a multirun has made `seed=0` too, that one counts.

    Raises:
        ValueError: If none is left, or they have different budgets.
    """
    chosen: dict[int, Run] = {}
    left_out = [*unfinished]
    for run in sorted(runs, key=lambda run: run.directory.name != "default"):
        name = run.directory.name
        if run.overrides or not name.startswith(("default", "seed=")):
            left_out.append(f"{name}: another experiment than arpo_miniwob itself")
        elif len(run.evaluations) < 2:
            left_out.append(f"{name}: it was not evaluated before and after")
        else:
            if run.seed in chosen:
                left_out.append(f"{chosen[run.seed].directory.name}: seed {run.seed} stands twice")
            chosen[run.seed] = run
    if not chosen:
        raise ValueError("no complete run: " + "; ".join(left_out))
    budgets = {run.directory.name: run.budget for run in chosen.values()}
    if len(set(budgets.values())) > 1:
        raise ValueError(f"the runs have different numbers of iterations: {budgets}; make them again")
    return [chosen[seed] for seed in sorted(chosen)], left_out


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a run and iteration."""
    return [
        {
            "seed": run.seed,
            "iteration": line["step"],
            "success": line["rollout/success_rate"],
            "all_failed": line["group/all_failed"],
            "injected": line.get("replay/injected") or 0.0,
        }
        | {f"{phase}_s": line.get(f"time/{phase}") or 0.0 for phase in PHASES}
        for run in runs
        for line in run.iterations
    ]


def summarize(runs: Sequence[Run], left_out: Sequence[str], warmstart_s: float | None) -> dict[str, Any]:
    """Everything that the README says."""
    return {
        "budget_iterations": runs[0].budget,
        "warmstart_s": warmstart_s,
        "success": {name: success(runs, name) for name in LISTS},
        "pages": by_page(runs, "held_out"),
        "time": mean_time(runs),
        "left_out": list(left_out),
        "provenance": provenance(runs),
    }


def success(runs: Sequence[Run], name: str) -> dict[str, Any] | None:
    """Success on one task list before and after training, by seed; None where it was not evaluated."""
    pairs = {run.seed: (run.evaluations[0], run.evaluations[max(run.evaluations)]) for run in runs}
    values = {seed: (first[name], last[name]) for seed, (first, last) in pairs.items() if name in first}
    if not values:
        return None
    return {
        "seeds": [{"seed": seed, "base": first, "final": last} for seed, (first, last) in values.items()],
        "base": fmean(first for first, _ in values.values()),
        "final": fmean(last for _, last in values.values()),
        "rise": asdict(t_interval([last - first for first, last in values.values()])),
    }


def by_page(runs: Sequence[Run], name: str) -> list[dict[str, Any]]:
    """Success on each page of a task list before and after training, mean over runs; the best page comes first."""
    phases = [[page_results(run, iteration, name) for run in runs] for iteration in (0, runs[0].budget)]
    pages = [
        {"page": page, "episodes": phases[0][0][page]["episodes"]}
        | {
            when: fmean(results[page]["success_rate"] for results in phase)
            for when, phase in zip(("base", "final"), phases, strict=True)
        }
        for page in phases[0][0]
    ]
    return sorted(pages, key=lambda row: -row["final"])


def page_results(run: Run, iteration: int, name: str) -> dict[str, Any]:
    """What an evaluation says of each page of a task list."""
    return {page["name"]: page for page in scores(run, iteration, name, "domains")}


def mean_time(runs: Sequence[Run]) -> dict[str, float]:
    """Seconds of a run by phase, mean over runs.

    `rollout`, `update`, `sync` and `evaluation` are wall time. `environment` and `generation` divide the rollout in
    proportion to `time/env` and `time/generate`, which are sums over episodes that overlap.
    """
    splits = []
    for run in runs:
        env, generate = run.total("time/env"), run.total("time/generate")
        split = {phase: run.total(f"time/{phase}") for phase in PHASES} | {"evaluation": run.evaluation_s}
        split["rest"] = max(0.0, run.wall_s - sum(split.values()))
        split["environment"] = split["rollout"] * env / max(env + generate, 1e-9)
        split["generation"] = split["rollout"] - split["environment"]
        split["wall"] = run.wall_s
        splits.append(split)
    return {phase: fmean(split[phase] for split in splits) for phase in splits[0]}


# --- words ----------------------------------------------------------------------------------------------------------


def report(summary: dict[str, Any]) -> str:
    """The measured block of this folder's README."""
    parts = [success_table(summary), page_table(summary), time_table(summary), origin(summary["provenance"])]
    if summary["left_out"]:
        parts.append("Left out: " + "; ".join(summary["left_out"]) + ".")
    return "\n\n".join(parts)


def success_table(summary: dict[str, Any]) -> str:
    """Success before and after, a row a seed and task list."""
    lines = []
    for name, words in LISTS.items():
        result = summary["success"][name]
        if result is None:
            continue
        for row in result["seeds"]:
            gain = Interval(row["final"] - row["base"], None, None)
            lines.append([words, str(row["seed"]), percent(row["base"]), percent(row["final"]), gain.points()])
        rise = Interval(**result["rise"]).points()
        lines.append([words, "**mean**", percent(result["base"]), f"**{percent(result['final'])}**", rise])
    header = [
        "success",
        "seed",
        "warm start",
        f"after {summary['budget_iterations']} iterations",
        "rise [95 % t interval]",
    ]
    return table(header, lines)


def page_table(summary: dict[str, Any]) -> str:
    """Success on held-out seeds, a row a page."""
    lines = [
        [row["page"], str(row["episodes"]), percent(row["base"]), percent(row["final"])] for row in summary["pages"]
    ]
    return table(["held-out seeds by page, mean over seeds", "episodes", "warm start", "at the end"], lines)


def time_table(summary: dict[str, Any]) -> str:
    """Where the time of a run went."""
    time = summary["time"]
    wall = max(time["wall"], 1e-9)
    words = {
        "rollout": "rollout",
        "environment": "… of it waiting for environments",
        "generation": "… of it waiting for the engine",
        "update": "update",
        "sync": "weight sync with its probe",
        "evaluation": "evaluation",
        "rest": "start and the rest",
    }
    lines = [[text, f"{time[phase]:.0f} s", f"{100 * time[phase] / wall:.0f} %"] for phase, text in words.items()]
    lines.append(["**training, wall time**", f"**{time['wall']:.0f} s**", "100 %"])
    if summary["warmstart_s"] is not None:
        lines.append(["warm start before it", f"{summary['warmstart_s']:.0f} s", ""])
    return table(["time of a run, mean over seeds", "seconds", "share"], lines)


def headline(summary: dict[str, Any]) -> str:
    """The measured block of the project's README."""
    found = [(words, summary["success"][name]) for name, words in LISTS.items() if summary["success"][name]]
    changes = [f"from {percent(result['base'])} to {percent(result['final'])} on {words}" for words, result in found]
    seeds = len(summary["success"]["in_domain"]["seeds"])
    minutes = summary["time"]["wall"] / 60
    return (
        f"In {summary['budget_iterations']} iterations and {minutes:.0f} minutes "
        f"({', '.join(summary['provenance']['machines'])}) success goes {', '.join(changes)};\n"
        f"mean of {seeds} seed{'s' * (seeds != 1)} ([study](experiments/miniwob/README.md))."
    )


# --- picture --------------------------------------------------------------------------------------------------------


def bars(found: Mapping[str, Any]) -> Bars:
    """Success on every task list before and after training, a dot a seed."""
    words = {"base": "warm start", "final": "after training"}
    values = {
        words[phase]: {LISTS[name]: [row[phase] for row in found[name]["seeds"]] for name in LISTS if found[name]}
        for phase in words
    }
    return Bars("success in an evaluation (%)", values)


# --- files ----------------------------------------------------------------------------------------------------------


def warmstart_seconds(runs: Path) -> float | None:
    """Seconds of the warm start whose folder lies beside the runs, None where there is none."""
    folder = runs.resolve().parent / "warmstart_miniwob" / "default"
    return read_run(folder).wall_s if (folder / "run.json").exists() else None


def main(arguments: Sequence[str] | None = None) -> None:
    options = collect_options(__doc__, "arpo_miniwob", arguments)
    runs, left_out = choose(*read_runs(find_runs([str(options.runs)])))
    summary = summarize(runs, left_out, warmstart_seconds(options.runs))
    write_study(HERE, rows(runs), summary)
    lines = [row | {"arm": "ARPO, mean of the seeds"} for row in rows(runs)]
    title = "A tiny agent on sixteen MiniWoB++ pages, from screenshots"
    draw(lines, PANELS, title, HERE / "plot.png", [bars(summary["success"])])
    print(report(summary))
    if options.write:
        write_block(HERE / "README.md", report(summary))
        write_block(ROOT / "README.md", headline(summary), name="measured miniwob")


if __name__ == "__main__":
    main()
