"""C3PO of Ring-lite (arXiv 2506.14731): a budget of tokens, so that lengths change no scale of gradients."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from arpo.algorithms.losses import Aggregation, MinibatchAverage
from arpo.bounds import AtLeastOne, checked
from arpo.errors import ConfigError
from arpo.methods.grpo import GRPO
from arpo.methods.method import Credit, Scores
from arpo.types import Group

Over = Literal["drop", "truncate"]


@checked
@dataclass(frozen=True, kw_only=True)
class C3PO(GRPO):
    """GRPO on as many trajectories as have Φ sampled tokens; the loss is their sum, divided by Φ.

    Trajectories that have an advantage are drawn from the whole batch in a random order, until the next one would
    exceed Φ; it and all others teach nothing, and those without an advantage cost nothing. Φ is an upper bound: a
    batch of fewer tokens learns at a smaller scale, by the factor `train/budget_used`. The order is a function of the
    trajectories' ids. A batch is cut into M optimizer steps after that, by groups, and each of them divides by
    Φ / M: with one step an iteration, Φ is the budget of an optimizer step, as in the paper.

    Args:
        budget: Φ, sampled tokens of one pass over a batch at most; 409,600 in the paper. Below those of a trajectory,
            `drop` may leave nothing to learn from.
        over: The trajectory that would exceed Φ is `drop`ped as a whole, or `truncate`d: the first of its tokens, as
            many as Φ has room for, are trained. The paper does not say which.
    """

    budget: AtLeastOne = 409_600
    over: Over = "drop"
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        if self.aggregation != "token":
            raise ConfigError(
                f"aggregation must be token, got {self.aggregation!r}: the loss is divided by the budget"
            )
        for name in ("kl_coefficient", "entropy_coefficient"):
            if (value := vars(self)[name]) != 0:
                raise ConfigError(f"{name} must be 0, got {value}: it is of all tokens, those beyond the budget too")
        super().__post_init__()

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        found = super().credits(groups)
        room = self.budget
        for group, member in _drawn(groups):
            advantages = found[group][member].advantages
            tokens = len(advantages) if advantages.any() else 0
            if tokens > room:
                kept = advantages.clone()
                kept[room if self.over == "truncate" else 0 :] = 0.0
                found[group][member] = Credit(kept)
            room = max(room - tokens, 0)
        return found

    @override
    def all_credits(self, groups: Sequence[Group]) -> list[list[Credit]]:
        return super().credits(groups)

    @override
    def measure(self, groups: Sequence[Group], credits: Sequence[Sequence[Credit]]) -> dict[str, float]:
        used, wanted = (
            sum(int(torch.count_nonzero(credit.advantages)) for row in each for credit in row)
            for each in (credits, self.all_credits(groups))
        )
        return {"train/budget_used": used / self.budget} | ({"train/budget_share": used / wanted} if wanted else {})

    @override
    def complaint(self, tokens: int) -> str | None:
        if tokens >= self.budget:
            return None
        return (
            f"budget={self.budget} is above the {tokens} sampled tokens of a batch: it leaves nothing out, and the "
            f"loss, divided by it, is {self.budget / max(tokens, 1):.0f} times smaller than a mean over tokens: lower "
            "module.objective.budget"
        )

    @override
    def average(self, sequences: float, tokens: float, episodes: float, share: float) -> MinibatchAverage:
        return MinibatchAverage("token", sequences=sequences, tokens=self.budget * share)


def _drawn(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """Return the places of all trajectories, group and member, in an order by chance that follows from their ids."""
    chances = {}
    for number, group in enumerate(groups):
        members = sorted(trajectory.id for trajectory in group.trajectories)  # a replayed one is drawn anew each time
        for member, trajectory in enumerate(group.trajectories):
            chances[number, member] = hashlib.sha256(repr((trajectory.id, members)).encode()).digest()
    return sorted(chances, key=chances.__getitem__)
