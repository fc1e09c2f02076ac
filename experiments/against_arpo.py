"""DART against ARPO on the same tasks: what decoupling alone changes, and what curation adds."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from arpo.apps.comparison.curves import Panel
from arpo.apps.comparison.measures import Measure, evaluated, final, mean_of, minutes, minutes_to, seconds
from arpo.apps.comparison.runs import SUCCESS
from experiments import study
from experiments.study import Arm, read_arms

ARPO = "ARPO"
NEARLY = 0.9
"""The share of ARPO's final success whose time is measured: half of the runs never reach the mean of all of them."""
AHEAD = ("rollout.settings.max_policy_lag=1", "rollout.settings.order=finished")
COLUMNS = {"seconds": seconds, "success": SUCCESS, "leased": "env/leased", "acting": "env/acting"}
PANELS = (
    Panel("success", "training success (%)", 100),
    Panel("leased", "environments leased (%)", 100),
    Panel("seconds", "seconds an iteration"),
)


def arms_of(arpo: str, dart: str) -> tuple[Arm, ...]:
    """Return the arms: an experiment, the same decoupled, and DART's on the same tasks."""
    return (Arm(ARPO, arpo), Arm("ARPO, decoupled", arpo, AHEAD), Arm("DART", dart))


def measures(target: float) -> tuple[Measure, ...]:
    """Return what is measured of a run, the minutes to a success among them."""
    return (
        Measure(
            "evaluated", "success on the training tasks after the last update", evaluated("in_domain"), None, True
        ),
        Measure("trained", "success of the last 5 iterations", final(SUCCESS)),
        Measure("held_out", "success on held-out tasks", evaluated("held_out")),
        Measure("minutes_to", "minutes to 90 % of ARPO's success at the end", minutes_to(target), digits=1),
        Measure("minutes", "minutes of a run, with evaluations", minutes, digits=1),
        Measure("iteration", "seconds an iteration", mean_of("time/iteration"), digits=2),
        Measure("predicted", "predicted speed-up of decoupling", mean_of("rollout/predicted_speedup"), digits=2),
        Measure("leased", "environment time that belongs to an episode", mean_of("env/leased")),
        Measure("acting", "environment time in which one works", mean_of("env/acting")),
    )


def collect(here: Path, description: str | None, arms: Sequence[Arm], arguments: Sequence[str] | None) -> None:
    """Write what came out into the folder of a study, and on demand into its README.

    Raises:
        ValueError: If no run of ARPO came to its end.
    """
    options = study.collect_options(description, "", arguments)
    runs = read_arms(options.runs, arms[:1])[0][0].runs.values()
    successes = [success for run in runs if (success := final(SUCCESS)(run)) is not None]
    if not successes:
        raise ValueError(f"no run of experiment={arms[0].experiment} is complete, with which the others are compared")
    study.collect(here, description, arms, measures(NEARLY * fmean(successes)), COLUMNS, arguments)
