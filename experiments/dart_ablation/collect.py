"""DART's curations one after another: `python experiments/dart_ablation/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.arms import Arm, Arms, evaluated, mean_of, number, rows, summarize, write_results  # noqa: E402
from experiments.study import collect_options, percent  # noqa: E402

BASE = "no curation"
CURATIONS = {
    "+ rollout number": "rollout_number=dynamic",
    "+ trajectory length": "trajectory_length=dynamic",
    "+ high-entropy steps": "module.objective.high_entropy_steps=0.8",
    "+ pool": "replay=pool",
}
"""What is added, in the order of the paper's table."""
ARMS = (
    Arm(BASE, "dart_ablation"),
    *(
        Arm(name, "dart_ablation", overrides)
        for name, overrides in zip(CURATIONS, accumulate((line,) for line in CURATIONS.values()), strict=True)
    ),
)
SEEDS = (0, 1, 2)
MEASURES = {
    "evaluated": evaluated("in_domain"),
    "all_failed": mean_of("group/all_failed"),
    "all_succeeded": mean_of("group/all_succeeded"),
    "episodes": mean_of("rollout/episodes"),
    "steps": mean_of("rollout/steps"),
    "injected": mean_of("replay/injected"),
    "minutes": lambda run: run.wall_s / 60,
}
SHOWN = {
    "evaluated": ("success after the last update", percent),
    "all_failed": ("groups that failed as a whole", percent),
    "all_succeeded": ("groups that succeeded as a whole", percent),
    "episodes": ("episodes an iteration", number(1)),
    "steps": ("steps an episode", number(2)),
    "injected": ("injections an iteration", number(2)),
    "minutes": ("minutes of a run", number(1)),
}
COLUMNS = {"success": "rollout/success_rate", "episodes": "rollout/episodes", "steps": "rollout/steps"}


def main(arguments: Sequence[str] | None = None) -> None:
    options = collect_options(__doc__, "", arguments)
    arms = Arms.read(options.runs, ARMS)
    summary = summarize(arms, MEASURES, reference=BASE, compared="evaluated")
    write_results(HERE, rows(arms, COLUMNS), summary, SHOWN, readme=options.write)


if __name__ == "__main__":
    main()
