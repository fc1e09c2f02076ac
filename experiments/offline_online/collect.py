"""Offline against online in numbers: `python experiments/offline_online/collect.py [outputs] --write`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from arpo.apps.comparison.compare import Comparison  # noqa: E402
from arpo.apps.comparison.words import DASH, percent, table  # noqa: E402
from experiments.small import ARPO, BASE, COLUMNS, EVALUATED, GRPO, LISTS, MINUTES, TRAINED  # noqa: E402
from experiments.study import Arm, collect  # noqa: E402

METHODS = {"rejection sampling": "offline_rs_small", "DPO": "offline_dpo_small", "KTO": "offline_kto_small"}
"""The experiments of the offline methods; GRPO takes as many optimizer steps as each of their files says, 80."""
LONGER = 320
"""Optimizer steps of the arms that may learn longer from the same episodes."""
THREE = (0, 1, 2)
"""Seeds of the offline arms; five are for ARPO against GRPO."""
EQUAL = tuple(Arm(name, experiment, seeds=THREE) for name, experiment in METHODS.items())
MORE = tuple(
    Arm(f"{name}, {LONGER} steps", experiment, (f"datamodule.steps={LONGER}",), THREE)
    for name, experiment in METHODS.items()
)
ARMS = (GRPO, ARPO, BASE, *EQUAL, *MORE)
SEEDS = (0, 1, 2, 3, 4)
MEASURES = (
    *(replace(measure, is_compared=measure.key != "held_out_pages") for measure in EVALUATED),
    TRAINED,
    MINUTES,
)
PAPER = {"rejection sampling": 0.218, "DPO": 0.224, "KTO": 0.246, "GRPO": 0.26, "ARPO": 0.273}
"""Section 4.6 of arXiv 2505.16282: success on OSWorld."""


def beside_the_paper(comparison: Comparison) -> str:
    """The success of every method, at equal steps, with more steps, and the paper's."""
    arms = {arm.name: arm for arm in comparison.arms}
    longer = dict(zip(METHODS, MORE, strict=True))

    def cell(arm: Arm | None, key: str) -> str:
        return DASH if arm is None else percent(comparison.mean(arms[arm.name], key))

    lines = [
        [arm.name]
        + [cell(arm, key) for key in LISTS]
        + [cell(longer.get(arm.name), key) for key in LISTS]
        + [percent(PAPER.get(arm.name))]
        for arm in (BASE, *EQUAL, GRPO, ARPO)
    ]
    header = [*LISTS.values(), *(f"{words}, {LONGER} steps" for words in LISTS.values()), "paper: OSWorld"]
    return table(["success after the last update", *header], lines)


def main(arguments: Sequence[str] | None = None) -> None:
    collect(HERE, __doc__, ARMS, MEASURES, COLUMNS, arguments, first=beside_the_paper)


if __name__ == "__main__":
    main()
