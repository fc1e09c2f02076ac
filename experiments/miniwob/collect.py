"""The main job in numbers, with replay and without: `python experiments/miniwob/collect.py [outputs] --write`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.compare import FINAL, Comparison, Measure, evaluated, final, minutes, rows  # noqa: E402
from arpo.apps.comparison.curves import Panel, draw  # noqa: E402
from arpo.apps.comparison.runs import SUCCESS, Run  # noqa: E402
from arpo.apps.comparison.words import DASH, origin, percent, table  # noqa: E402
from arpo.evaluation.intervals import Interval  # noqa: E402
from arpo.evaluation.run_folder import read_metrics  # noqa: E402
from experiments.curves import Bars  # noqa: E402
from experiments.studies import before, risen  # noqa: E402
from experiments.study import (  # noqa: E402
    ROOT,
    Arm,
    collect_options,
    compare_arms,
    scores,
    summarize,
    write_block,
    write_study,
)

ARMS = (Arm("GRPO", "arpo_miniwob", ("replay=off",)), Arm("ARPO", "arpo_miniwob", ("replay=on",)))
LISTS = {"in_domain": "training tasks", "held_out": "held-out seeds", "held_out_pages": "held-out pages"}
WHEN = ("before", "after")
PHASES = ("rollout", "update", "sync")


def injected(run: Run) -> float:
    """Share of the iterations in which a past success was injected."""
    return fmean(bool(line.get("replay/injected")) for line in run.iterations)


MEASURES = (
    *(Measure(f"{name}_before", f"{words}, before", before(name)) for name, words in LISTS.items()),
    *(Measure(f"{name}_after", f"{words}, after", evaluated(name), is_compared=True) for name, words in LISTS.items()),
    *(Measure(f"{name}_rise", f"{words}, rise", risen(name)) for name, words in LISTS.items()),
    Measure("final_success", f"success of the last {FINAL} iterations", final(SUCCESS), is_compared=True),
    Measure("injected", "share of the iterations with an injection", injected),
    Measure("minutes", "minutes of a run", minutes, digits=1),
)
COLUMNS = {
    "success": SUCCESS,
    "all_failed": "group/all_failed",
    "injected": lambda line: line.get("replay/injected") or 0.0,
}
PANELS = (Panel("success", "success of the sampled episodes (%)", 100),)


def measured(outputs: Path) -> Comparison:
    """The runs of both arms that came to their end."""
    return compare_arms(outputs, ARMS, MEASURES, against="GRPO")


def arpo_runs(comparison: Comparison) -> list[Run]:
    """The runs of `make train`, seed by seed."""
    (arm,) = (arm for arm in comparison.arms if arm.name == "ARPO")
    if not arm.runs:
        raise SystemExit(f"no run of ARPO has come to its end: {ARMS[1].command([0, 1, 2, 3, 4])}")
    return [arm.runs[seed] for seed in sorted(arm.runs)]


def facts(comparison: Comparison) -> dict[str, Any]:
    """Everything that is said of the runs."""
    spreads = {
        arm.name: {measure.key: comparison.spread(arm, measure.key) for measure in MEASURES} for arm in comparison.arms
    }
    return {
        "budget": max(run.budget for arm in comparison.arms for run in arm.runs.values()),
        "seeds": {arm.name: len(arm.runs) for arm in comparison.arms},
        "intervals": {
            name: {key: spread.interval for key, spread in of.items() if spread is not None}
            for name, of in spreads.items()
        },
        "pages": by_page(arpo_runs(comparison), "held_out"),
        "time": time_of(min(arpo_runs(comparison), key=lambda run: run.wall_s)),  # others had work beside them
        **summarize(comparison),
    }


def by_page(runs: Sequence[Run], name: str) -> list[dict[str, Any]]:
    """Success on each page of a task list before and after training, mean over runs; the best page comes first."""
    pages: dict[str, dict[str, Any]] = {}
    for when, at in zip(WHEN, (0, runs[0].budget), strict=True):
        judged = [page for run in runs for page in scores(run, at, name, "domains")]
        for page in dict.fromkeys(each["name"] for each in judged):
            own = [each for each in judged if each["name"] == page]  # a run may have lost the page's episodes
            row = pages.setdefault(page, {"page": page, "episodes": own[0]["episodes"], "before": None, "after": None})
            row[when] = fmean(each["success_rate"] for each in own)
    return sorted(pages.values(), key=lambda row: -(row["after"] or 0.0))


def total(lines: Iterable[Mapping[str, Any]], metric: str) -> float:
    """The sum of a metric over lines of metrics.jsonl."""
    return sum(line.get(metric) or 0.0 for line in lines)


def time_of(run: Run) -> dict[str, float]:
    """Seconds of a run by phase.

    `rollout`, `update`, `sync` and `evaluation` are wall time. `environment` and `generation` divide the rollout in
    proportion to `time/env` and `time/generate`, which are sums over episodes that overlap.
    """
    env, generate = (total(run.iterations, f"time/{part}") for part in ("env", "generate"))
    split = {phase: total(run.iterations, f"time/{phase}") for phase in PHASES}
    split["evaluation"] = total(read_metrics(run.directory)[0], "time/evaluation")  # one of them precedes training
    split["rest"] = max(0.0, run.wall_s - sum(split.values()))
    split["environment"] = split["rollout"] * env / max(env + generate, 1e-9)
    split["generation"] = split["rollout"] - split["environment"]
    return split | {"wall": run.wall_s}


# --- words ----------------------------------------------------------------------------------------------------------


def report(found: dict[str, Any]) -> str:
    """The measured block of this folder's README."""
    parts = [
        success_table(found),
        injections(found),
        page_table(found),
        time_table(found),
        origin(found["provenance"]),
    ]
    if found["left_out"]:
        parts.append("Left out: " + "; ".join(found["left_out"]) + ".")
    return "\n\n".join(parts)


def success_table(found: dict[str, Any]) -> str:
    """Success before and after, a row a task list."""
    arms = found["intervals"]
    lines = []
    for name, words in LISTS.items():
        means = [percent(arms["ARPO"][f"{name}_before"].mean)]
        means += [percent(arms[arm][f"{name}_after"].mean) if arms[arm] else DASH for arm in ("GRPO", "ARPO")]
        lines.append([words, *means, arms["ARPO"][f"{name}_rise"].points(), difference(found, f"{name}_after")])
    finals = [percent(arms[arm]["final_success"].mean) if arms[arm] else DASH for arm in ("GRPO", "ARPO")]
    lines.append([f"episodes of the last {FINAL} iterations", "", *finals, "", difference(found, "final_success")])
    header = ["success", "warm start", "GRPO", "ARPO", "rise of ARPO [95 %]", "ARPO − GRPO, paired by seed [95 %]"]
    return table(header, lines)


def difference(found: dict[str, Any], key: str) -> str:
    """ARPO minus GRPO in a measure, with its interval; a dash where no seed has both."""
    pair = found["difference"]["ARPO"][key]
    return DASH if pair is None else f"{Interval(**pair['student']).points()}, {len(pair['seeds'])} seeds"


def injections(found: dict[str, Any]) -> str:
    """How often replay had something to do."""
    share = found["intervals"]["ARPO"]["injected"].mean
    return f"A past success was injected in {percent(share)} of the iterations."


def page_table(found: dict[str, Any]) -> str:
    """Success on held-out seeds, a row a page."""
    lines = [
        [row["page"], str(row["episodes"]), *(percent(row[when]) if row[when] is not None else DASH for when in WHEN)]
        for row in found["pages"]
    ]
    return table(["held-out seeds by page, ARPO, mean over seeds", "episodes", "warm start", "at the end"], lines)


def time_table(found: dict[str, Any]) -> str:
    """Where the time of a run went."""
    time = found["time"]
    wall = max(time["wall"], 1e-9)
    words = {
        "rollout": "rollout",
        "environment": "… of it waiting for environments",
        "generation": "… of it waiting for the engine",
        "update": "update",
        "sync": "weight sync and its check",
        "evaluation": "evaluation",
        "rest": "start and the rest",
    }
    lines = [[text, f"{time[phase]:.0f} s", f"{100 * time[phase] / wall:.0f} %"] for phase, text in words.items()]
    lines.append(["**training, wall time**", f"**{time['wall']:.0f} s**", "100 %"])
    return table(["time of the fastest ARPO run", "seconds", "share"], lines)


def headline(found: dict[str, Any]) -> str:
    """The measured block of the project's README."""
    of = found["intervals"]["ARPO"]
    changes = [
        f"from {percent(of[f'{name}_before'].mean)} to {percent(of[f'{name}_after'].mean)} on {words}, "
        f"{of[f'{name}_rise'].points()}"
        for name, words in LISTS.items()
    ]
    seeds = found["seeds"]["ARPO"]
    said = (
        f"In {found['budget']} iterations and {found['time']['wall'] / 60:.0f} minutes (the fastest run; "
        f"{', '.join(found['provenance']['machines'])}) success goes {'; '.join(changes)}"
    )
    if found["difference"]["ARPO"]["in_domain_after"] is not None:
        said += f". On training tasks ARPO − GRPO is {difference(found, 'in_domain_after')}"
    of = f"means and 95 % intervals of {seeds} seed{'s' * (seeds != 1)}"
    return f"{said}\n({of}; [study](experiments/miniwob/README.md))."


# --- files ----------------------------------------------------------------------------------------------------------


def bars(found: dict[str, Any]) -> Bars:
    """Success on every task list before and after training, a dot a seed."""
    columns = {"warm start": ("ARPO", "before"), "after GRPO": ("GRPO", "after"), "after ARPO": ("ARPO", "after")}
    values = {
        words: {LISTS[name]: [run[f"{name}_{when}"] for run in found["runs"] if run["arm"] == arm] for name in LISTS}
        for words, (arm, when) in columns.items()
        if found["seeds"][arm]
    }
    return Bars("success in an evaluation (%)", values)


def main(arguments: Sequence[str] | None = None) -> None:
    options = collect_options(__doc__, "", arguments)
    comparison = measured(options.runs)
    found = facts(comparison)
    lines = rows(comparison.arms, COLUMNS)
    write_study(HERE, lines, {name: value for name, value in found.items() if name != "intervals"})
    draw(lines, PANELS, "A tiny agent on eight MiniWoB++ pages, from screenshots", HERE / "plot.png", [bars(found)])
    print(report(found))
    if options.write:
        write_block(HERE / "README.md", report(found))
        write_block(ROOT / "README.md", headline(found), name="measured miniwob")


if __name__ == "__main__":
    main()
