"""32 training tasks against 128 in numbers: `python experiments/subset/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.measures import Measure, Of, count_of, final, mean_of  # noqa: E402
from experiments.small import ALL_FAILED, ARPO, COLUMNS, EVALUATED, MINUTES, SMALL, TRAINED  # noqa: E402
from experiments.study import Arm, collect  # noqa: E402

ALL = Arm("128 tasks", SMALL, ("tasks=miniwob_128",))
SUBSET = Arm("32 tasks", ARPO.experiment, ARPO.overrides)
"""The runs of ARPO of the other studies."""
ARMS = (ALL, SUBSET)
SEEDS = (0, 1, 2)
SUBJECT = "tasks.train.*"
"""The keys by which the arms are meant to differ."""


def with_signal(of: Of) -> Of:
    """The measure of the share of groups with a signal, from that of those whose rewards are all equal."""
    return lambda run: None if (share := of(run)) is None else 1 - share


MEASURES = (
    *EVALUATED,
    TRAINED,
    Measure("reward", "task reward of the last 5 iterations", final("rollout/task_reward"), digits=3),
    Measure("deviation", "deviation of rewards in a group, whole run", mean_of("group/reward_std"), digits=3),
    Measure("final_deviation", "deviation, last 5 iterations", final("group/reward_std"), digits=3),
    Measure("signal", "groups with a signal, whole run", with_signal(mean_of("group/degenerate"))),
    Measure("final_signal", "groups with a signal, last 5 iterations", with_signal(final("group/degenerate"))),
    ALL_FAILED,
    Measure("injected", "injections an iteration", count_of("replay/injected"), digits=2),
    MINUTES,
)
OWN_COLUMNS = COLUMNS | {
    "reward": "rollout/task_reward",
    "deviation": "group/reward_std",
    "signal": lambda line: None if (share := line.get("group/degenerate")) is None else 1 - share,
}


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, OWN_COLUMNS, arguments, subject=SUBJECT)


if __name__ == "__main__":
    main()
