"""Bars of every method, ours and the paper's: `python experiments/offline_online/plot.py` writes plot.png."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # a script finds only what lies beside it

from experiments.curves import Bars, of_seeds, save, turned  # noqa: E402
from experiments.offline_online.collect import ARPO, BASE, EQUAL, GRPO, LONGER, METHODS, MORE, PAPER  # noqa: E402
from experiments.small import LISTS  # noqa: E402

SHORT = {"rejection sampling": "RS"}
"""Names that would not fit below a bar."""


def panel(label: str, offline: dict[str, str]) -> Bars:
    """The success of the base, of some offline arms and of both online arms, by task list."""
    names = {BASE.name: BASE.name} | offline | {arm.name: arm.name for arm in (GRPO, ARPO)}
    return Bars(label, turned(of_seeds(HERE, names, LISTS)))


if __name__ == "__main__":
    equal = {arm.name: SHORT.get(name, name) for name, arm in zip(METHODS, EQUAL, strict=True)}
    more = {arm.name: SHORT.get(name, name) for name, arm in zip(METHODS, MORE, strict=True)}
    paper = {"OSWorld": {SHORT.get(name, name): [share] for name, share in PAPER.items()}}
    bars = (
        panel("success, equal episodes and steps (%)", equal),
        panel(f"success, offline {LONGER} steps (%)", more),
        Bars("the paper (%)", paper, top=40),
    )
    save(HERE, (), "Offline and online", bars)
