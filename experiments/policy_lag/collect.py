"""Lags and corrections in numbers: `python experiments/policy_lag/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.arms import Arm, Arms, evaluated, mean_of, number, rows, summarize, trained, write_results  # noqa: E402
from experiments.study import collect_options, percent  # noqa: E402

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
MEASURES = {
    "evaluated": evaluated("in_domain"),
    "trained": trained,
    "lag": mean_of("rollout/lag_mean"),
    "ess": mean_of("policy/importance_ess"),
    "cut": mean_of("policy/weight_cut"),
    "minutes": lambda run: run.wall_s / 60,
}
SHOWN = {
    "evaluated": ("success after the last update", percent),
    "trained": ("success of the last 5 iterations", percent),
    "lag": ("lag of a step, mean", number(2)),
    "ess": ("effective sample size of the importance ratios", percent),
    "cut": ("share of tokens that the correction touches", percent),
    "minutes": ("minutes of a run", number(1)),
}
COLUMNS = {"success": "rollout/success_rate", "lag": "rollout/lag_mean", "ess": "policy/importance_ess"}


def main(arguments: Sequence[str] | None = None) -> None:
    options = collect_options(__doc__, "", arguments)
    arms = Arms.read(options.runs, ARMS)
    summary = summarize(arms, MEASURES, reference="lag 0", compared="evaluated")
    write_results(HERE, rows(arms, COLUMNS), summary, SHOWN, readme=options.write)


if __name__ == "__main__":
    main()
