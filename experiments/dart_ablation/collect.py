"""DART's curations one after another: `python experiments/dart_ablation/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.measures import Measure, count_of, evaluated, mean_of, minutes, seconds  # noqa: E402
from experiments.study import Arm, collect  # noqa: E402

CURATIONS = {
    "+ rollout number": "rollout_number=dynamic",
    "+ trajectory length": "trajectory_length=dynamic",
    "+ high-entropy steps": "module.objective.high_entropy_steps=0.8",
    "+ pool": "replay=pool",
}
"""What is added, in the order of the paper's table."""
ARMS = (
    Arm("no curation", "dart_ablation"),
    *(
        Arm(name, "dart_ablation", overrides)
        for name, overrides in zip(CURATIONS, accumulate((line,) for line in CURATIONS.values()), strict=True)
    ),
)
SEEDS = (0, 1, 2)
MEASURES = (
    Measure("evaluated", "success after the last update", evaluated("in_domain"), is_compared=True),
    Measure("all_failed", "groups that failed as a whole", mean_of("group/all_failed")),
    Measure("all_succeeded", "groups that succeeded as a whole", mean_of("group/all_succeeded")),
    Measure("episodes", "episodes an iteration", mean_of("rollout/episodes"), digits=1),
    Measure("steps", "steps an episode", mean_of("rollout/steps"), digits=2),
    Measure("injected", "injections an iteration", count_of("replay/injected"), digits=2),
    Measure("minutes", "minutes of a run", minutes, digits=1),
)
COLUMNS = {
    "seconds": seconds,
    "success": "rollout/success_rate",
    "episodes": "rollout/episodes",
    "steps": "rollout/steps",
}


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, COLUMNS, arguments)


if __name__ == "__main__":
    main()
