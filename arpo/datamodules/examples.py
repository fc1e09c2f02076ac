"""Examples to learn from, made of stored episodes: successes alone, every episode, or pairs of both kinds.

An example is what a batch holds whole: one trajectory, or the two of a pair, the better one first.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence

from arpo.rollout.seeds import derive_seed
from arpo.types import Trajectory

log = logging.getLogger(__name__)

Example = tuple[Trajectory, ...]
Judge = Callable[[Trajectory], bool]
"""Says whether a trajectory is a success."""


def successes(trajectories: Sequence[Trajectory], succeeds: Judge, _seed: int) -> list[Example]:
    """Return each success as an example of its own: imitating them is rejection sampling."""
    return [(trajectory,) for trajectory in trajectories if succeeds(trajectory)]


def every_episode(trajectories: Sequence[Trajectory], _succeeds: Judge, _seed: int) -> list[Example]:
    """Return each trajectory as an example of its own, success or not."""
    return [(trajectory,) for trajectory in trajectories]


def pairs(trajectories: Sequence[Trajectory], succeeds: Judge, seed: int) -> list[Example]:
    """Return pairs of a success and a failure of the same task, no trajectory in more than one.

    Of each task, successes and failures are shuffled and paired in that order, so the pairs are a function of the
    trajectories and the seed. The more numerous kind has some left over, and a task of one kind gives no pair; how
    many stay without a partner is logged.
    """
    sides: dict[str, tuple[list[Trajectory], list[Trajectory]]] = defaultdict(lambda: ([], []))
    for trajectory in trajectories:
        good, bad = sides[trajectory.task_id]
        (good if succeeds(trajectory) else bad).append(trajectory)
    made: list[Example] = []
    for task_id, (good, bad) in sides.items():
        rng = random.Random(derive_seed(seed, "pairs", task_id))
        rng.shuffle(good)
        rng.shuffle(bad)
        made += zip(good, bad, strict=False)
    alone = [sum(len(side[kind]) for side in sides.values()) - len(made) for kind in (0, 1)]
    log.info("%d pairs of %d tasks; %d successes and %d failures have no partner", len(made), len(sides), *alone)
    return made
