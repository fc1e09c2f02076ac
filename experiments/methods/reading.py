"""The methods beside ARPO, read from what is stored: `python experiments/methods/reading.py --write`.

Needs no runs: `summary.json` has each run's measures, `results.csv` each iteration's success and injections. It prints
the differences as the README's measured block has them, and what the curves say, which `--write` puts into the README.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.arms import Arm  # noqa: E402
from arpo.apps.comparison.compare import (  # noqa: E402
    FINAL,
    Comparison,
)
from arpo.apps.comparison.runs import SUCCESS, Run  # noqa: E402
from arpo.apps.comparison.words import differences, percent  # noqa: E402
from arpo.evaluation.intervals import difference  # noqa: E402
from experiments.studies import OF_ALL_METHODS  # noqa: E402
from experiments.study import write_block  # noqa: E402

WARMUP = 4
"""Iterations in which UI-TARS-2's critic learns alone (`module.critic_warmup` of `method=ui_tars2`)."""


def stored(folder: Path) -> Comparison:
    """Return the comparison of all arms from the files in a folder; its runs have no configuration and no origin."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    arms = tuple(
        Arm(name, {run["seed"]: _run(run["seed"], name, lines) for run in summary["runs"] if run["arm"] == name})
        for name in summary["arms"]
    )
    values: dict[str, dict[int, dict[str, float | None]]] = {arm.name: {} for arm in arms}
    for run in summary["runs"]:
        values[run["arm"]][run["seed"]] = {key: run[key] for key in run.keys() - {"arm", "seed"}}
    measures = OF_ALL_METHODS.measures
    assert isinstance(measures, tuple), "those of this study depend on no run"
    return Comparison(arms, measures, arms[0], values, {}, ())


def _run(seed: int, arm: str, lines: Sequence[dict[str, str]]) -> Run:
    own = [line for line in lines if line["arm"] == arm and int(line["seed"]) == seed]
    iterations = tuple(
        {
            "step": int(line["iteration"]),
            SUCCESS: float(line["success"]),
            "replay/injected": float(line["injected"] or 0),
        }
        for line in own  # GRPO has no buffer
    )
    return Run(Path(arm), {}, seed, len(own), iterations, (), {})


def curves(comparison: Comparison) -> list[str]:
    """Return what is read from the curves: equal updates, injections before the first update, and equal arms."""
    arms = {arm.name: arm for arm in comparison.arms}

    def success(name: str, last: int) -> dict[int, float]:
        """Return the mean success of `FINAL` iterations, the last of them with a number, by seed."""
        return {
            seed: fmean(line[SUCCESS] for line in run.iterations if last - FINAL < line["step"] <= last)
            for seed, run in arms[name].runs.items()
        }

    end = max(run.budget for run in arms["UI-TARS-2"].runs.values())
    equal = end - WARMUP
    late, early = success("UI-TARS-2", end), success("ARPO", equal)
    found = difference(early, late)
    assert found is not None, "both arms are stored"
    first = {
        name: [f"{run.iterations[0]['replay/injected']:.0f}" for run in arm.runs.values()]
        for name, arm in arms.items()
        if any(run.iterations[0]["replay/injected"] for run in arm.runs.values())
    }
    same = [
        arm.name
        for arm in comparison.others
        if all(run.iterations == arms["ARPO"].runs[seed].iterations for seed, run in arm.runs.items())
    ]
    return [
        f"*UI-TARS-2* has {equal} updates of its policy, the others {end}. Its last {FINAL} iterations "
        f"({percent(fmean(late.values()))}) against ARPO's after as many updates, iterations {equal - FINAL + 1} "
        f"to {equal} ({percent(fmean(early.values()))}): **{found.interval.points()}**, p {found.p_value:.3f}.",
        *(f"*{name}* injects {', '.join(counts)} successes in iteration 1." for name, counts in first.items()),
        f"Equal to *ARPO* in every iteration of every seed: {', '.join(same)}.",
    ]


def listed(lines: Sequence[str]) -> str:
    """Return lines as a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also rewrite what the curves say in the README")
    options = parser.parse_args(arguments)
    comparison = stored(HERE)
    print(listed(differences(comparison)), listed(curves(comparison)), sep="\n\n")
    if options.write:
        write_block(HERE / "README.md", listed(curves(comparison)), name="curves")


if __name__ == "__main__":
    main()
