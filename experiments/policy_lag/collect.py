"""Lags and corrections in numbers: `python experiments/policy_lag/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.measures import Measure, evaluated, final, mean_of, minutes, seconds  # noqa: E402
from experiments.study import Arm, collect  # noqa: E402

LAG = "rollout.settings.max_policy_lag"
CORRECTION = "module.objective.correction"
ARMS = (
    Arm("lag 0", "policy_lag"),
    Arm("lag 1", "policy_lag", (f"{LAG}=1",)),
    Arm("lag 8", "policy_lag", (f"{LAG}=8",)),
    Arm("lag 8, truncated a token", "policy_lag", (f"{LAG}=8", f"{CORRECTION}=tis_token")),
    Arm("lag 8, decoupled PPO", "policy_lag", (f"{LAG}=8", f"{CORRECTION}=decoupled")),
)
SEEDS = (0, 1, 2)
MEASURES = (
    Measure("evaluated", "success after the last update", evaluated("in_domain"), is_compared=True),
    Measure("trained", "success of the last 5 iterations", final("rollout/success_rate")),
    Measure("lag", "lag of a step, mean", mean_of("rollout/lag_mean"), digits=2),
    Measure("ess", "effective sample size of the importance ratios", mean_of("policy/importance_ess")),
    Measure("cut", "share of tokens that the correction touches", mean_of("policy/weight_cut")),
    Measure("minutes", "minutes of a run", minutes, digits=1),
)
COLUMNS = {
    "seconds": seconds,
    "success": "rollout/success_rate",
    "lag": "rollout/lag_mean",
    "ess": "policy/importance_ess",
}


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, COLUMNS, arguments)


if __name__ == "__main__":
    main()
