"""Other replay buffers: MobileRL's, of hard-won successes, and one of successes at similar tasks (Vid2Act)."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from arpo.bounds import Positive, PositiveShare, checked
from arpo.errors import ConfigError
from arpo.methods.method import Method
from arpo.replay import Choice, Key, Replaced, ReplayBuffer, Trigger
from arpo.types import Group, Task, Trajectory

SPACELESS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
"""Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
RUN = re.compile(rf"([{SPACELESS}]+)|[^\W{SPACELESS}]+")


def similarity(instruction: str, other: str) -> float:
    """Return the cosine between the words of two instructions, in [0, 1]: 1 where both have the same, 0 where none.

    Where a script has no spaces, its characters and pairs of neighbours count as words.

    >>> similarity("Click the button Yes", "click the button No")
    0.75
    >>> round(similarity("打开设置", "打开文件"), 3)
    0.429
    """
    counts = [Counter(_words(text.lower())) for text in (instruction, other)]
    shared = sum(count * counts[1][word] for word, count in counts[0].items())
    lengths = [math.sqrt(sum(count**2 for count in words.values())) for words in counts]
    return shared / (lengths[0] * lengths[1]) if all(lengths) else float(instruction == other)


def _words(text: str) -> Iterator[str]:
    for run in RUN.finditer(text):
        yield from [*run[0], *map("".join, pairwise(run[0]))] if run[1] else [run[0]]


@checked
@dataclass(kw_only=True, eq=False, repr=False)
class AdaptiveBuffer(ReplayBuffer):
    """A buffer of hard-won successes, which take a share of every group of their task (AdaPR, arXiv 2509.18119).

    Of the successes of an iteration, the share κ with the largest advantages is stored, one at least, and none without
    a positive one: a success is worth more, the fewer of its group succeeded. In an update each member of a group is
    drawn from q = γ p_B + (1 - γ) p_on: of n members γ n, on average, make room for as many different successes of
    the task, drawn evenly. So the advantage of a replayed success is small where the policy succeeds by itself, and
    large where it fails. One member at least stays. Arguments that are not below are those of `ReplayBuffer`, but for
    `trigger`, `replaced`, `choice` and `key`.

    Args:
        method: That of the update, which must give advantages without a critic or teacher.
        share: κ. The paper does not say its value.
        replayed: γ: 0 replays nothing. The paper does not say its value.
    """

    method: Method
    share: PositiveShare = 0.25
    replayed: Annotated[float, Field(ge=0, lt=1)] = 0.25
    trigger: Trigger = field(init=False, default="all_failed")
    replaced: Replaced = field(init=False, default="random")
    choice: Choice = field(init=False, default="random")
    key: Key = field(init=False, default="task")

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method.needs.scores:
            raise ConfigError(
                f"replay=adapr ranks successes by advantages, and those of {type(self.method).__name__} need a critic "
                "or a teacher: take replay=on, or a method without one"
            )

    @override
    def inject(self, group: Group) -> Group:
        worthy = [each for each in self.candidates(group.task) if self.is_worth_replaying(each)]
        members = list(group.trajectories)
        if not worthy or len(members) == 1:
            return group
        wanted = math.floor(self.replayed * len(members) + self._random.random())
        count = min(wanted, len(members) - 1, len(worthy))
        places = sorted(self._random.sample(range(len(members)), count))
        for place, success in zip(places, self._random.sample(worthy, count), strict=True):
            members[place] = success
        if not places:
            return group
        return replace(group, trajectories=tuple(members), injected=tuple(sorted({*group.injected, *places})))

    @override
    def admit_all(self, groups: Sequence[Group]) -> int:
        advantages = {
            (number, member): credit.advantages.double().mean().item()
            for number, row in enumerate(self.method.all_credits(groups))
            for member, credit in enumerate(row)
            if member not in groups[number].injected and self.is_worth_replaying(groups[number].trajectories[member])
        }
        ranked = sorted(advantages, key=advantages.__getitem__, reverse=True)  # of equals, the earlier one first
        best = [place for place in ranked[: math.ceil(self.share * len(ranked))] if advantages[place] > 0]
        return sum(
            self.admit(replace(groups[number], trajectories=(groups[number].trajectories[member],), injected=()))
            for number, member in sorted(best)
        )


@checked
@dataclass(kw_only=True, eq=False, repr=False)
class RelevanceBuffer(ReplayBuffer):
    """A buffer in which a success of any task may join a group, one of a similar task rather than another.

    A success is drawn with probability exp(s / T) / Σ exp(s / T), s being the similarity of its instruction to that of
    the group: the relevance that Vid2Act gives to source tasks (arXiv 2306.03360), with words in the place of a world
    model. A small `temperature` T leaves the same instruction, a large one draws evenly. The other arguments are those
    of `ReplayBuffer`, but for `choice` and `key`.
    """

    temperature: Positive = 0.1
    choice: Choice = field(init=False, default="random")
    key: Key = field(init=False, default="task")

    @override
    def candidates(self, task: Task) -> tuple[Trajectory, ...]:
        return tuple(trajectory for entries in self._entries.values() for trajectory in entries)

    @override
    def choose(self, worthy: Sequence[Trajectory], group: Group) -> Trajectory:
        asked = group.trajectories[0].instruction  # a task may learn its own from the page
        alike = {text: similarity(text, asked) for text in {trajectory.instruction for trajectory in worthy}}
        best = max(alike.values())
        weights = [math.exp((alike[trajectory.instruction] - best) / self.temperature) for trajectory in worthy]
        return self._random.choices(worthy, weights)[0]
