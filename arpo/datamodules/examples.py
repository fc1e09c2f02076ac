"""Examples to learn from, made of stored episodes: successes alone, every episode, or pairs of both kinds.

A batch holds an example whole: one trajectory, or the two of a pair, the better one first.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, islice

from arpo.errors import ConfigError
from arpo.rollout.sampler import derive_seed
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

log = logging.getLogger(__name__)

PLAYED = ("train", "demonstration")
"""The parts of a store that are learned from. Evaluations are not: they play held-out tasks."""

Example = tuple[Trajectory, ...]
Judge = Callable[[Trajectory], bool]
"""Says whether a trajectory is a success."""
Make = Callable[[Sequence[Trajectory], Judge, int], list[Example]]
"""Makes examples of trajectories, by a judge and a seed."""


def read_examples(
    store: TrajectoryStore,
    make: Make,
    succeeds: Judge,
    *,
    first: int | None = None,
    outcomes: Sequence[str] | None = None,
    seed: int = 0,
    retokenize: Callable[[Sequence[Trajectory]], Sequence[Trajectory]] = list,
    least: int = 1,
) -> list[Example]:
    """Return the examples that stored episodes make, without screenshots.

    Args:
        store: Where the episodes are.
        make: A function of this module, or another one like them.
        succeeds: Says which episodes are successes.
        first: Take this many episodes, the earliest, whatever came of them; None takes all.
        outcomes: Leave out episodes that ended in another way; None keeps all.
        seed: Of the pairs.
        retokenize: Encodes episodes as a policy would have sampled them, and leaves out those that it could not.
        least: Examples that must be there, counting once what says the same.
    """
    episodes = list(islice(store.read_all(PLAYED), first))
    if len(episodes) < max(1, first or 0):
        raise ConfigError(
            f"source: {store.root} holds {len(episodes)} episodes of a training or of demonstrations, and "
            f"{first or 1} are wanted (evaluations are left out): name another run, or lower datamodule.first"
        )
    kept = retokenize([each for each in episodes if outcomes is None or each.outcome.value in outcomes])
    good = sum(map(succeeds, kept))
    log.info("%d of %d episodes of %s are taken, %d succeed", len(kept), len(episodes), store.root, good)
    if not kept:
        raise ConfigError(
            f"source: of {len(episodes)} episodes of {store.root} none is left: widen datamodule.outcomes or "
            "rollout.settings.max_context"
        )
    examples = make(kept, succeeds, seed)
    if not examples:
        raise ConfigError(
            f"source: nothing can be learned from {len(kept)} episodes of {store.root}, of which {good} succeed: "
            "rejection sampling needs successes, and a pair has a success and a failure of one task; name another "
            "run, or raise datamodule.first"
        )
    different = {tuple(step.response for each in example for step in each.steps) for example in examples}
    if len(different) < least:
        raise ConfigError(
            f"source: {len(examples)} examples of {store.root} say {len(different)} different things, and {least} are "
            "needed, because the module compares each with one that says something else: raise datamodule.first, "
            "widen datamodule.outcomes, or name another run"
        )
    lost = [path for trajectory in chain.from_iterable(examples) for path in store.lost_screenshots(trajectory)]
    if lost:
        raise ConfigError(
            f"source: {len(lost)} screenshots that episodes of {store.root} show are lost or cut, the first is "
            f"{lost[0]}: copy the folder whole, or name another run"
        )
    return examples


def successes(trajectories: Sequence[Trajectory], succeeds: Judge, _seed: int) -> list[Example]:
    """Return each success as an example of its own: imitating them is rejection sampling."""
    return [(trajectory,) for trajectory in trajectories if succeeds(trajectory)]


def every_episode(trajectories: Sequence[Trajectory], _succeeds: Judge, _seed: int) -> list[Example]:
    """Return each trajectory as an example of its own, success or not."""
    return [(trajectory,) for trajectory in trajectories]


def pairs(trajectories: Sequence[Trajectory], succeeds: Judge, seed: int) -> list[Example]:
    """Return pairs of a success and a failure of the same task, no trajectory in more than one.

    Of each task, successes and failures are shuffled and paired in that order. The more numerous kind has some left
    over, and a task of one kind gives no pair; how many stay without a partner is logged.
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
