"""A plan: its figures, its verdict, its table, and the settings by which a run that does not fit would."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from arpo.apps.plan.costs import Case, Serving
from arpo.apps.plan.hardware import GIB
from arpo.apps.plan.tracker import CATEGORIES, MEANINGS, Category

Row = tuple[str, str, str]
"""A name, its figure, and where that comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The needs of a run, at the longest trajectories that its numbers allow."""

    case: Case
    peak: Counter[Category]
    """Bytes of a training GPU when it holds most."""
    reserve_gib: float
    """GiB of a training GPU that no tensor of ours gets."""
    cache_gib: float
    """GiB that PyTorch's allocator keeps of tensors that are gone."""
    engine_gib: float
    """GiB of a training GPU that an engine keeps during an update."""
    serving: Serving
    costs: Sequence[Row] = ()
    """Rows below those of GPU memory: time, host, disk."""
    share_key: str = ""
    """The override by which an engine gets its share of a GPU that it has together with a trainer."""

    @property
    def training_gib(self) -> float:
        """GiB that a training GPU must have."""
        return sum(self.peak.values()) / GIB + self.cache_gib + self.reserve_gib + self.engine_gib

    @property
    def serving_gib(self) -> float:
        """GiB that a serving GPU must have; where a trainer rests there, its own reserve with it."""
        beside = self.serving.beside_gib
        return self.serving.share_gib + (beside + self.reserve_gib if beside else 0.0)

    @property
    def episodes_at_once(self) -> int:
        """Episodes whose whole contexts fit on all serving GPUs together."""
        return self.serving.contexts * self.case.layout.replicas

    @property
    def serves(self) -> bool:
        """Whether an engine fits, with one context of the longest trajectory."""
        return self.serving_gib <= self.case.gpu.memory_gib and self.serving.contexts >= 1

    @property
    def left_share(self) -> float:
        """The share of a GPU that its trainer leaves to an engine, at rest where that one sleeps meanwhile."""
        memory, shared = self.case.gpu.memory_gib, self.case.weights.shared_bytes / GIB
        asleep = self.serving.beside_gib + self.reserve_gib
        taken = asleep if self.case.work.sleeps else self.training_gib - self.engine_gib - shared
        return int(100 * (memory - taken) / memory) / 100

    @property
    def share_setting(self) -> str:
        """The setting by which an engine gets what its trainer leaves."""
        return f"{self.share_key}={self.left_share}"

    def divided(self) -> "Plan | None":
        """Return the plan with `share_setting`; None where that does not fit, or changes nothing."""
        share_gib = self.left_share * self.case.gpu.memory_gib
        more = share_gib - self.serving.share_gib
        if not self.share_key or abs(more) < 0.005 * self.case.gpu.memory_gib:
            return None
        kept = max(0.0, self.engine_gib + (0.0 if self.case.work.sleeps else more))
        divided = replace(self, engine_gib=kept, serving=self.serving.with_share(share_gib))
        return None if divided.troubles() else divided

    def troubles(self) -> list[str]:
        """Return a line for each thing that does not fit."""
        troubles = []
        if self.training_gib > self.case.gpu.memory_gib:
            troubles.append(
                f"a training GPU needs {self.training_gib:.1f} GiB and has {self.case.gpu.memory_gib:.1f}: "
                f"{self.training_gib - self.case.gpu.memory_gib:.1f} GiB too little"
            )
        if self.serving_gib > self.case.gpu.memory_gib:
            troubles.append(
                f"a serving GPU needs {self.serving_gib:.1f} GiB and has {self.case.gpu.memory_gib:.1f}, because the "
                f"engine's share is {self.serving.share_gib:.1f} and a trainer rests beside it"
            )
        if self.serving.contexts < 1:
            troubles.append(
                f"a serving GPU has {self.serving.kv_gib:.1f} GiB for the KV cache, too little for one context of the "
                "longest trajectory"
            )
        return troubles

    def verdict(self) -> str:
        """Return one sentence: whether the run fits, and by how much."""
        troubles = self.troubles()
        if troubles:
            return "It does not fit: " + "; ".join(troubles) + "."
        spare = self.case.gpu.memory_gib - self.training_gib
        return (
            f"It fits: a training GPU has {spare:.1f} GiB to spare, and {self.episodes_at_once} episodes of the "
            f"longest kind fit into the KV cache at once, of {self.case.work.environments} environments."
        )

    def rows(self) -> list[Row]:
        """Return the table, the header first; a row without a figure is left out."""
        serving = self.serving
        parts = f"{serving.weights_gib:.1f} of weights and {serving.workspace_gib:.1f} of workspace"
        share = f"with {parts} the engine's share: {serving.share_gib:.1f}"
        environments = f"whole contexts; there are {self.case.work.environments} environments"
        memory = [
            *((f"training GPU: {MEANINGS[each]}", f"{self.peak[each] / GIB:.1f} GiB", "") for each in CATEGORIES),
            ("training GPU: allocator's cache", f"{self.cache_gib:.1f} GiB", "pieces of tensors that are gone"),
            ("training GPU: reserve", f"{self.reserve_gib:.1f} GiB", "context, NCCL, kernels' workspaces"),
            ("training GPU: engine", if_any(self.engine_gib, "GiB"), "during an update"),
            ("training GPU", f"{self.training_gib:.1f} GiB", f"of {self.case.gpu.memory_gib:.1f}"),
            ("serving GPU: KV cache", f"{serving.kv_gib:.1f} GiB", share),
            ("serving GPU: trainer at rest", if_any(serving.beside_gib, "GiB"), "parameters and moments"),
            ("episodes at once", f"{self.episodes_at_once}", environments),
        ]
        layout, longest, weights = self.case.layout, self.case.longest, self.case.weights
        gpus = f"{layout.gpus} x {self.case.gpu.name}, {layout.name}, {layout.strategy}"
        screens = f"{longest.shown} screenshots of {longest.screen[0]} x {longest.screen[1]}"
        tokens = f"{longest.image_tokens} tokens each; {longest.sampled_tokens} sampled"
        sequences = "" if longest.image_window is None else f"{len(longest.lengths)}"
        lengths = f"one a step, of {longest.lengths[0]} to {longest.lengths[-1]} tokens"
        shape = [
            ("layout", f"{layout.trainers} train, {layout.engines} serve", gpus),
            ("longest trajectory", f"{longest.max_context} tokens", f"{screens}, {tokens}"),
            ("its training sequences", sequences, lengths),
            ("parameters", f"{weights.total / 1e9:.2f} billion", f"{weights.trained / 1e9:.3f} billion are trained"),
        ]
        return [("what", "figure", "from"), *(row for row in (*shape, *memory, *self.costs) if row[1])]


def if_any(amount: float, unit: str) -> str:
    """Return an amount with its unit; nothing for 0, so that its row is left out."""
    return f"{amount:.1f} {unit}" if amount else ""


Attempt = Callable[[Sequence[str]], Plan | None]
"""The plan of a run with further settings; None where they do not go with the others."""
RECOMMENDED = 3
LARGEST_SET = 4
MOST_ATTEMPTS = 12
"""Sets that get a plan of their own, which may take half a minute."""
NEAR = 1.05
"""Memory that a set may be expected to need, as a multiple of what there is, to get one."""


def advise(plan: Plan, offered: Sequence[str], attempt: Attempt) -> tuple[list[tuple[str, str, str]], str]:
    """Return a table of the settings that help most, those that fit first, and a sentence about it.

    Where none fits alone, the last row has the fewest that fit together; of equally many, those with the least loss.
    `offered` has the least loss first. What a trainer leaves to its engine is a setting beside them, with which a plan
    needs no simulation of its own.
    """
    divided = plan.divided()
    alone = {setting: other for setting in offered if (other := attempt([setting])) is not None}
    helpful = [name for name, it in alone.items() if it.training_gib < plan.training_gib or not it.troubles()]
    best = sorted(helpful, key=lambda name: (bool(alone[name].troubles()), alone[name].training_gib))[:RECOMMENDED]
    rows = [("setting", "training GPU", "verdict"), *(_row([name], alone[name]) for name in best)]
    if divided is not None:  # which costs episodes at once, and nothing else
        rows.insert(1, _row([plan.share_setting], divided))
    if divided is not None or any(not other.troubles() for other in alone.values()):
        return rows, "each setting alone"
    tried: dict[tuple[str, ...], Plan] = {(setting,): other for setting, other in alone.items()}
    for settings, with_share in promising(plan, alone):
        if settings not in tried:
            if len(tried) == len(alone) + MOST_ATTEMPTS:
                break
            tried[settings] = attempt(settings) or plan
        together = tried[settings].divided() if with_share else tried[settings]
        if together is not None and not together.troubles():
            more = (tried[settings].share_setting,) if with_share else ()
            return [
                *rows,
                _row((*settings, *more), together),
            ], "each setting alone, and the fewest found to fit together"
    return rows, f"each setting alone; no set of up to {LARGEST_SET} of those that are known was found to fit"


def promising(plan: Plan, alone: Mapping[str, Plan]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the sets of settings that are expected to fit, small ones first, then those with the least loss.

    A setting is expected to reduce each part of a GPU's memory by the share by which it does alone. With each set goes
    whether the engine gets what the trainer leaves with it, which counts as a setting more.
    """
    rank = list(alone).index
    for size in range(2, LARGEST_SET + 1):
        for with_share in (True, False):
            sets = combinations(alone, size - with_share)
            for settings in sorted(sets, key=lambda names: sorted(map(rank, names), reverse=True)):
                others = [alone[name] for name in settings]
                expected = _expected(plan, others)
                if with_share:
                    fits = (expected if size > 2 else others[0]).divided() is not None
                else:
                    fits = expected.training_gib <= NEAR * plan.case.gpu.memory_gib
                    fits = fits and any(each.serves for each in (plan, *others))
                if fits:
                    yield settings, with_share


def _expected(plan: Plan, others: Sequence[Plan]) -> Plan:
    def left(now: float, then: Sequence[float]) -> float:
        return now * prod(min(1.0, each / now) for each in then) if now else min(then)

    peak = Counter({part: left(plan.peak[part], [each.peak[part] for each in others]) for part in plan.peak})
    cache = left(plan.cache_gib, [each.cache_gib for each in others])
    least = min((plan, *others), key=lambda each: each.serving.context_gib)
    kept = min(each.engine_gib for each in (plan, *others))
    alike = min(others, key=lambda each: -each.case.weights.shared_bytes)  # of what one setting shares, all do
    return replace(plan, case=alike.case, peak=peak, cache_gib=cache, engine_gib=kept, serving=least.serving)


def _row(settings: Sequence[str], plan: Plan) -> tuple[str, str, str]:
    return " ".join(settings), f"{plan.training_gib:.1f} GiB", plan.verdict()
