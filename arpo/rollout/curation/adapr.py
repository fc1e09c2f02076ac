"""MobileRL's difficulty-adaptive positive replay (AdaPR, arXiv 2509.18119): hard-won successes, in every group."""

import math
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from arpo.errors import ConfigError
from arpo.methods.method import Method
from arpo.replay import ReplayBuffer
from arpo.types import Group


class AdaptiveBuffer(ReplayBuffer):
    """A buffer of the successes that were hardest won, which take a share of every group of their task.

    Of the successes of an iteration, the share κ with the largest advantages is stored, one at least, and none without
    a positive one: a success is worth more, the fewer of its group succeeded. In an update each member of a group is
    drawn from q = γ p_B + (1 - γ) p_on: of n members γ n, on average, make room for as many different successes of
    the task, drawn evenly, which are then compared with the others of the group. So the advantage of a replayed
    success is small where the policy succeeds by itself, and large where it fails. One member at least stays, and a
    task without a stored success is learned from its own episodes alone.

    Args:
        method: Gives trajectories their advantages: that of the update, which must do so without a critic or teacher.
        capacity_per_task: See `ReplayBuffer`, as for all that are not below.
        share: κ. The paper does not say its value.
        replayed: γ: 0 replays nothing. The paper does not say its value.
    """

    def __init__(
        self,
        method: Method,
        capacity_per_task: int = 8,
        seed: int = 0,
        *,
        share: float = 0.25,
        replayed: float = 0.25,
        success_threshold: float = 0.5,
        format_weight: float = 1.0,
    ) -> None:
        super().__init__(capacity_per_task, seed, success_threshold=success_threshold, format_weight=format_weight)
        if not 0 < share <= 1:
            raise ConfigError(f"share must lie in (0, 1], got {share}; for GRPO use replay=off")
        if not 0 <= replayed < 1:
            raise ConfigError(f"replayed must lie in [0, 1), got {replayed}; the rest of a group is collected")
        if method.needs.scores:
            raise ConfigError(
                f"replay=adapr ranks successes by advantages, and those of {type(method).__name__} need a critic or "
                "a teacher: take replay=on, or a method without one"
            )
        self._method = method
        self._share = share
        self._replayed = replayed

    @override
    def inject(self, group: Group) -> Group:
        worthy = [each for each in self.candidates(group.task) if self.is_worth_replaying(each)]
        members = list(group.trajectories)
        if not worthy or len(members) == 1:
            return group
        wanted = math.floor(self._replayed * len(members) + self._random.random())
        count = min(wanted, len(members) - 1, len(worthy))
        places = sorted(self._random.sample(range(len(members)), count))
        for place, success in zip(places, self._random.sample(worthy, count), strict=True):
            members[place] = success
        if not places:
            return group
        return replace(group, trajectories=tuple(members), injected=tuple(sorted({*group.injected, *places})))

    @override
    def admit_all(self, groups: Sequence[Group]) -> int:
        credits = self._method.all_credits(groups)
        advantages = {
            (number, member): credit.advantages.double().mean().item()
            for number, row in enumerate(credits)
            for member, credit in enumerate(row)
            if member not in groups[number].injected and self.is_worth_replaying(groups[number].trajectories[member])
        }
        ranked = sorted(advantages, key=advantages.__getitem__, reverse=True)  # of equals, the earlier one first
        best = [place for place in ranked[: math.ceil(self._share * len(ranked))] if advantages[place] > 0]
        return sum(
            self.admit(replace(groups[number], trajectories=(groups[number].trajectories[member],), injected=()))
            for number, member in sorted(best)
        )
