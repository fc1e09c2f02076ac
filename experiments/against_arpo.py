"""DART against ARPO on the same tasks: what decoupling alone changes, and what curation adds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from experiments.arms import Arm, Arms, evaluated, mean_of, minutes_to, number, rows, summarize, trained, write_results
from experiments.study import collect_options, percent

ARPO = "ARPO"
NEARLY = 0.9
"""The share of ARPO's final success whose time is measured: half of the runs never reach the mean of all of them."""
AHEAD = ("rollout.settings.max_policy_lag=1", "rollout.settings.order=finished")
MEASURES = {
    "evaluated": evaluated("in_domain"),
    "trained": trained,
    "held_out": evaluated("held_out"),
    "leased": mean_of("env/leased"),
    "acting": mean_of("env/acting"),
    "iteration": mean_of("time/iteration"),
    "predicted": mean_of("rollout/predicted_speedup"),
    "minutes": lambda run: run.wall_s / 60,
}
SHOWN = {
    "evaluated": ("success on the training tasks after the last update", percent),
    "trained": ("success of the last 5 iterations", percent),
    "held_out": ("success on held-out tasks", percent),
    "minutes_to": ("minutes to 90 % of ARPO's success of the last 5 iterations", number(1)),
    "minutes": ("minutes of a run, with evaluations", number(1)),
    "iteration": ("seconds an iteration", number(2)),
    "predicted": ("predicted speed-up of decoupling", number(2)),
    "leased": ("environment time that belongs to an episode", percent),
    "acting": ("environment time in which one works", percent),
}
COLUMNS = {"success": "rollout/success_rate", "leased": "env/leased", "acting": "env/acting"}
PANELS = {
    "success": ("training success (%)", 100),
    "leased": ("environments leased (%)", 100),
    "seconds": ("seconds an iteration", 1),
}
"""Of the plot: by column, the label of the axis and the factor to its unit."""


def arms_of(tasks: str) -> tuple[Arm, ...]:
    """Return the arms on the tasks of `arpo_<tasks>` and `dart_<tasks>`."""
    return (
        Arm(ARPO, f"arpo_{tasks}"),
        Arm("ARPO, decoupled", f"arpo_{tasks}", AHEAD),
        Arm("DART", f"dart_{tasks}"),
    )


def collect(here: Path, description: str | None, arms: Sequence[Arm], arguments: Sequence[str] | None) -> None:
    """Write what came out into the folder of a study, and on demand into its README.

    Raises:
        ValueError: If no run of ARPO came to its end.
    """
    options = collect_options(description, "", arguments)
    found = Arms.read(options.runs, arms)
    if not found.runs[ARPO]:
        raise ValueError(f"no run of experiment={arms[0].experiment} is complete, with which the others are compared")
    target = NEARLY * fmean(trained(run) for run in found.runs[ARPO].values())
    measures = {**MEASURES, "minutes_to": minutes_to(target)}
    summary = summarize(found, measures, reference=ARPO, compared="evaluated")
    write_results(here, rows(found, COLUMNS), summary, SHOWN, readme=options.write)
