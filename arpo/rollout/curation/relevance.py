"""Replay of what resembles a task: successes of all tasks, weighted by how alike the instructions are."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from arpo.errors import check_positive
from arpo.replay import ReplayBuffer
from arpo.types import Task, Trajectory

WORD = re.compile(r"\w+")


def similarity(instruction: str, other: str) -> float:
    """Return the cosine between the words of two instructions, in [0, 1]: 1 where both have the same, 0 where none.

    >>> similarity("Click the button Yes", "click the button No")
    0.75
    """
    counts = [Counter(WORD.findall(text.lower())) for text in (instruction, other)]
    shared = sum(count * counts[1][word] for word, count in counts[0].items())
    lengths = [math.sqrt(sum(count**2 for count in words.values())) for words in counts]
    return shared / (lengths[0] * lengths[1]) if all(lengths) else float(instruction == other)


class RelevanceBuffer(ReplayBuffer):
    """A buffer in which a success of any task may join a group, one of a similar task rather than another.

    A success is drawn with probability exp(s / T) / Σ exp(s / T), s being the similarity of its instruction to that of
    the group's task: the relevance that Vid2Act gives to source tasks (arXiv 2306.03360), with words in the place of a
    world model. A small T leaves the same instruction, as `key: task` does; a large one draws evenly.

    Args:
        temperature: T.
        options: See `ReplayBuffer`.

    Raises:
        ConfigError: When the temperature is not above 0.
    """

    def __init__(self, *arguments: Any, temperature: float = 0.1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        check_positive(temperature=temperature)
        self._temperature = temperature

    @override
    def candidates(self, task: Task) -> tuple[Trajectory, ...]:
        return tuple(trajectory for entries in self._entries.values() for trajectory in entries)

    @override
    def choose(self, worthy: Sequence[Trajectory], task: Task) -> Trajectory:
        alike = [similarity(trajectory.instruction, task.instruction) for trajectory in worthy]
        weights = [math.exp((each - max(alike)) / self._temperature) for each in alike]
        return self._random.choices(worthy, weights)[0]
