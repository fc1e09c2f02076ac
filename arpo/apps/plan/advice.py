"""The settings by which a run that does not fit would: each alone, and the fewest together."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from math import prod

from arpo.apps.plan.report import Plan

Attempt = Callable[[Sequence[str]], Plan | None]
"""The plan of a run with further settings; None where they do not go with the others."""
RECOMMENDED = 3
LARGEST_SET = 4
MOST_ATTEMPTS = 12
"""Sets that get a plan of their own, which may take a minute."""
NEAR = 1.05
"""Memory that a set may be expected to need, as a multiple of what there is, to get one."""


def advise(plan: Plan, offered: Sequence[str], attempt: Attempt) -> tuple[list[tuple[str, str, str]], str]:
    """Return a table of the settings that help most, those that fit first, and a sentence about it.

    Where none fits alone, the last row has the fewest that fit together; of equally many, those with the least loss.

    Args:
        plan: That does not fit.
        offered: Settings, the least loss first.
        attempt: Makes the plan with some of them.
    """
    alone = {setting: other for setting in offered if (other := attempt([setting])) is not None}
    helpful = [name for name, it in alone.items() if it.training_gib < plan.training_gib or not it.troubles()]
    best = sorted(helpful, key=lambda name: (bool(alone[name].troubles()), alone[name].training_gib))[:RECOMMENDED]
    rows = [("setting", "training GPU", "verdict"), *(_row([name], alone[name]) for name in best)]
    if any(not other.troubles() for other in alone.values()):
        return rows, "each setting alone"
    for settings in islice(promising(plan, alone), MOST_ATTEMPTS):
        together = attempt(settings)
        if together is not None and not together.troubles():
            return [*rows, _row(settings, together)], "each setting alone, and the fewest that fit together"
    return rows, f"each setting alone; no set of up to {LARGEST_SET} of those that are known was found to fit"


def promising(plan: Plan, alone: Mapping[str, Plan]) -> Iterator[tuple[str, ...]]:
    """Yield the sets of settings that are expected to fit, small ones first, then those with the least loss.

    A setting is expected to reduce each part of a GPU's memory by the share by which it does alone. An engine fits
    where one of the settings makes it fit.
    """
    rank = list(alone).index
    for size in range(2, LARGEST_SET + 1):
        for settings in sorted(combinations(alone, size), key=lambda names: sorted(map(rank, names), reverse=True)):
            others = [alone[name] for name in settings]
            fits = _expected(plan, others).training_gib <= NEAR * plan.gpu.memory_gib
            if fits and any(each.serves for each in (plan, *others)):
                yield settings


def _expected(plan: Plan, others: Sequence[Plan]) -> Plan:
    def left(now: float, then: Sequence[float]) -> float:
        return now * prod(each / now for each in then) if now else max(then)

    peak = Counter({part: left(plan.peak[part], [each.peak[part] for each in others]) for part in plan.peak})
    cache = left(plan.cache_gib, [each.cache_gib for each in others])
    return replace(plan, peak=peak, cache_gib=cache, engine_gib=min(each.engine_gib for each in (plan, *others)))


def _row(settings: Sequence[str], plan: Plan) -> tuple[str, str, str]:
    return " ".join(settings), f"{plan.training_gib:.1f} GiB", plan.verdict()
