"""Replay of what resembles a task: successes of all tasks, weighted by how alike the instructions are."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from typing_extensions import override

from arpo.errors import check_positive
from arpo.replay import Replaced, ReplayBuffer, Trigger
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


class RelevanceBuffer(ReplayBuffer):
    """A buffer in which a success of any task may join a group, one of a similar task rather than another.

    A success is drawn with probability exp(s / T) / Σ exp(s / T), s being the similarity of its instruction to that of
    the group: the relevance that Vid2Act gives to source tasks (arXiv 2306.03360), with words in the place of a world
    model. A small T leaves the same instruction, a large one draws evenly.

    Args:
        temperature: T.
        capacity_per_task: See `ReplayBuffer`, as for all that follow.
    """

    def __init__(
        self,
        capacity_per_task: int = 8,
        seed: int = 0,
        *,
        temperature: float = 0.1,
        success_threshold: float = 0.5,
        format_weight: float = 1.0,
        trigger: Trigger = "all_failed",
        replaced: Replaced = "random",
    ) -> None:
        super().__init__(
            capacity_per_task,
            seed,
            success_threshold=success_threshold,
            format_weight=format_weight,
            trigger=trigger,
            replaced=replaced,
        )
        check_positive(temperature=temperature)
        self._temperature = temperature

    @override
    def candidates(self, task: Task) -> tuple[Trajectory, ...]:
        return tuple(trajectory for entries in self._entries.values() for trajectory in entries)

    @override
    def choose(self, worthy: Sequence[Trajectory], group: Group) -> Trajectory:
        asked = group.trajectories[0].instruction  # a task may learn its own from the page
        alike = {text: similarity(text, asked) for text in {trajectory.instruction for trajectory in worthy}}
        best = max(alike.values())
        weights = [math.exp((alike[trajectory.instruction] - best) / self._temperature) for trajectory in worthy]
        return self._random.choices(worthy, weights)[0]
