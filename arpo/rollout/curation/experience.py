"""Successes that were collected beforehand: by another run, by a stronger policy, or by a script."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from arpo.errors import ConfigError
from arpo.rollout.curation.retokenize import RetokenizationError, retokenize_for
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Group, Task, Trajectory

log = logging.getLogger(__name__)

SPLIT = "pool"
"""The part of a run's trajectory store that holds them."""


class ExperiencePool:
    """Directories of trajectories, of which a run takes the successes at its tasks (DART, arXiv 2509.23866).

    They are copied into the run's own trajectory store once, under ids of their own: from there on the run depends on
    nothing outside its folder, and a checkpoint names them like any other trajectory. Their actions are in
    this project's grammar, in pixels of images of the same size as this run's.

    Args:
        directories: Trajectory stores: `trajectories` of another run or of an evaluation, `demonstrations` of a warm
            start. The successes of later directories, and in one of them those of later iterations, are the newer.
        tasks: What the run learns.
    """

    def __init__(self, directories: Sequence[str | Path], tasks: Sequence[Task]) -> None:
        self.directories = [Path(directory) for directory in directories]
        self.tasks = list(tasks)

    def move_into(self, runtime: RolloutRuntime, worthy: Callable[[Trajectory], bool], most: int) -> Iterator[Group]:
        """Copy successes into the store of a run, and yield them, a group a task, without screenshots.

        Args:
            runtime: Of the run: its store, its prompt and its context.
            worthy: Says which trajectories are taken.
            most: Trajectories of one task at most: the newest.
        """
        if not self.directories:
            log.warning("the experience pool is empty: name directories of trajectories, or choose another replay")
        found = self._newest(worthy, runtime, most)
        for number, task in enumerate(self.tasks):
            members = [
                _admitted(trajectory, store, runtime, id=f"{SPLIT}-0/{number}/{member}")
                for member, (trajectory, store) in enumerate(found[task.id])
            ]
            if members:
                yield Group(task, tuple(members))
        solved = [len(entries) for entries in found.values() if entries]
        log.info("the experience pool has %d successes at %d of %d tasks", sum(solved), len(solved), len(found))

    def _newest(
        self, worthy: Callable[[Trajectory], bool], runtime: RolloutRuntime, most: int
    ) -> dict[str, deque[tuple[Trajectory, TrajectoryStore]]]:
        """Return the newest successes of each task, oldest first, with the store that has their screenshots."""
        found = {task.id: deque[tuple[Trajectory, TrajectoryStore]](maxlen=most) for task in self.tasks}
        most_steps = {task.id: task.max_steps or runtime.settings.max_steps for task in self.tasks}
        outside: Counter[str] = Counter()
        for directory in self.directories:
            store = TrajectoryStore(directory)
            if not store.iterations():
                raise ConfigError(
                    f"directories: {store.root} holds no trajectories; name the trajectories/ of a run or of an "
                    "evaluation, or the demonstrations/ of a warm start"
                )
            for trajectory in store.read_all():
                if trajectory.task_id not in found or not worthy(trajectory):
                    continue
                if len(trajectory.steps) > most_steps[trajectory.task_id]:  # this run's policy could never do the same
                    outside["are longer than max_steps"] += 1
                    continue
                try:
                    found[trajectory.task_id].append((retokenize_for(runtime, trajectory, store), store))
                except RetokenizationError as error:
                    outside[str(error)] += 1
        for reason, count in outside.items():
            log.warning("%d successes %s and stay outside the pool", count, reason)
        return found


def _admitted(trajectory: Trajectory, origin: TrajectoryStore, runtime: RolloutRuntime, *, id: str) -> Trajectory:
    """Copy a trajectory into the run's store under a new id, and return it without screenshots."""
    whole = origin.load_screenshots(trajectory)
    # Its versions are those of another run: to this one it is as old as its first policy.
    steps = tuple(replace(step, policy_version=0) for step in whole.steps)
    runtime.store.write(replace(whole, id=id, steps=steps))
    return replace(whole, id=id, steps=steps, screenshots={})
