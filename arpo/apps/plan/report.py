"""A plan: its figures, its verdict, and the table that a person reads."""

from collections import Counter
from dataclasses import dataclass

from arpo.apps.plan.costs import Offloaded, Serving, Weights
from arpo.apps.plan.hardware import GIB, Gpu, Layout
from arpo.apps.plan.longest import Longest
from arpo.apps.plan.tracker import CATEGORIES, MEANINGS, Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that a run needs, at the longest trajectories that its numbers allow."""

    name: str
    """Of the experiment."""
    gpu: Gpu
    layout: Layout
    longest: Longest
    weights: Weights
    peak: Counter[Category]
    """Bytes of a training GPU when it holds most."""
    offloaded: Offloaded
    """Of a training GPU, to its host."""
    reserve_gib: float
    """GiB of a training GPU that no tensor of ours gets."""
    cache_gib: float
    """GiB that PyTorch's allocator keeps of tensors that are gone."""
    engine_gib: float
    """GiB of a training GPU that an engine keeps during an update."""
    serving: Serving
    environments: int
    sync_bytes: int
    sync_s: dict[str, float]
    """Of each leg."""
    sleep_s: float
    """Of one iteration: engines that go to sleep and wake."""
    update_flops: float
    """Of one trajectory."""
    update_s: float
    """Of one iteration."""
    offload_s: float
    """Of one iteration, on top."""
    iterations: int
    mfu: float
    host: dict[str, float]
    """GiB of memory of the first node."""
    disk: dict[str, float]
    """GiB of a run."""
    desktops: str
    """The sum of what desktops need; empty where that is little."""

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
        return self.serving.contexts * self.layout.replicas

    @property
    def serves(self) -> bool:
        """Whether an engine fits, with one context of the longest trajectory."""
        return self.serving_gib <= self.gpu.memory_gib and self.serving.contexts >= 1

    def troubles(self) -> list[str]:
        """Return a line for each thing that does not fit."""
        troubles = []
        if self.training_gib > self.gpu.memory_gib:
            troubles.append(
                f"a training GPU needs {self.training_gib:.1f} GiB and has {self.gpu.memory_gib:.1f}: "
                f"{self.training_gib - self.gpu.memory_gib:.1f} GiB too little"
            )
        if self.serving_gib > self.gpu.memory_gib:
            troubles.append(
                f"a serving GPU needs {self.serving_gib:.1f} GiB and has {self.gpu.memory_gib:.1f}, because the "
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
        spare = self.gpu.memory_gib - self.training_gib
        return (
            f"It fits: a training GPU has {spare:.1f} GiB to spare, and {self.episodes_at_once} episodes of the "
            f"longest kind fit into the KV cache at once, of {self.environments} environments."
        )

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the table: what, how much, and why."""
        rows = [*self._layout_rows(), *self._memory_rows(), *self._serving_rows(), *self._time_rows()]
        rows += [(f"host memory: {name}", f"{gib:.1f} GiB", "") for name, gib in self.host.items() if gib >= 0.05]
        rows.append(("host memory, first node", f"{sum(self.host.values()):.0f} GiB", "desktops on it come on top"))
        rows += [(f"disk: {name}", f"{gib:.0f} GiB", "") for name, gib in self.disk.items()]
        rows.append(("desktops", self.desktops, "requires.budget"))
        return [("what", "figure", "from"), *(row for row in rows if row[1])]

    def _layout_rows(self) -> list[tuple[str, str, str]]:
        longest, layout, weights = self.longest, self.layout, self.weights
        gpus = f"{layout.gpus} x {self.gpu.name}, {layout.name}, {layout.strategy}"
        screens = f"{longest.shown} screenshots of {longest.screen[0]} x {longest.screen[1]}"
        tokens = f"{longest.image_tokens} tokens each; {longest.sampled_tokens} sampled"
        sequences = "" if longest.image_window is None else f"{len(longest.lengths)}"
        lengths = f"one a step, of {longest.lengths[0]} to {longest.lengths[-1]} tokens"
        return [
            ("layout", f"{layout.trainers} train, {layout.engines} serve", gpus),
            ("longest trajectory", f"{longest.max_context} tokens", f"{screens}, {tokens}"),
            ("its training sequences", sequences, lengths),
            ("parameters", f"{weights.total / 1e9:.2f} billion", f"{weights.trained / 1e9:.3f} billion are trained"),
        ]

    def _memory_rows(self) -> list[tuple[str, str, str]]:
        offloaded = self.offloaded
        return [
            *((f"training GPU: {MEANINGS[each]}", f"{self.peak[each] / GIB:.1f} GiB", "") for each in CATEGORIES),
            ("training GPU: allocator's cache", f"{self.cache_gib:.1f} GiB", "pieces of tensors that are gone"),
            ("training GPU: reserve", f"{self.reserve_gib:.1f} GiB", "context, NCCL, kernels' workspaces"),
            ("training GPU: engine", _if_any(self.engine_gib, "GiB"), "during an update"),
            ("training GPU", f"{self.training_gib:.1f} GiB", f"of {self.gpu.memory_gib:.1f}"),
            ("offloaded to the host: moments", _if_any(offloaded.optimizer / GIB, "GiB"), "a training GPU"),
            ("offloaded to the host: activations", _if_any(offloaded.activations / GIB, "GiB"), "a training GPU"),
        ]

    def _serving_rows(self) -> list[tuple[str, str, str]]:
        serving = self.serving
        parts = f"{serving.weights_gib:.1f} of weights and {serving.workspace_gib:.1f} of workspace"
        share = f"with {parts} the engine's share: {serving.share_gib:.1f}"
        environments = f"whole contexts; there are {self.environments} environments"
        return [
            ("serving GPU: KV cache", f"{serving.kv_gib:.1f} GiB", share),
            ("serving GPU: trainer at rest", _if_any(serving.beside_gib, "GiB"), "parameters and moments"),
            ("episodes at once", f"{self.episodes_at_once}", environments),
        ]

    def _time_rows(self) -> list[tuple[str, str, str]]:
        sync_s = sum(self.sync_s.values())
        hours = self.iterations * (self.update_s + self.offload_s + sync_s + self.sleep_s) / 3600
        legs = ", ".join(f"{leg} {seconds:.1f}" for leg, seconds in self.sync_s.items())
        rollouts = f"{self.iterations} iterations; rollouts take what the desktops take"
        return [
            ("weight sync", f"{sync_s:.1f} s", f"{self.sync_bytes / 1e9:.2f} GB: {legs}"),
            ("engines asleep and awake", _if_any(self.sleep_s, "s"), "an iteration"),
            ("update of a trajectory", f"{self.update_flops / 1e15:.1f} PFLOP", "without what checkpointing repeats"),
            ("updates of an iteration", f"{self.update_s:.0f} s", f"at an MFU of {100 * self.mfu:.0f} %"),
            ("price of offloading", _if_any(self.offload_s, "s"), "an iteration, on top"),
            ("updates and syncs of the run", f"{hours:.1f} h", rollouts),
        ]


def _if_any(amount: float, unit: str) -> str:
    """Return an amount with its unit, and nothing of nothing, which is no row of the table."""
    return f"{amount:.1f} {unit}" if amount else ""
