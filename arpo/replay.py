"""The replay buffer: a few successes of every task, or of every domain, for the groups in which all failed."""

import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from arpo.algorithms.rewards import is_success, is_worth_replaying
from arpo.bounds import AtLeastOne, NotNegative, Threshold, checked
from arpo.errors import CheckpointError, ConfigError
from arpo.types import Group, Task, Trajectory

Trigger = Literal["all_failed", "official"]
Replaced = Literal["random", "first", "oldest", "none"]
Choice = Literal["random", "newest"]
Key = Literal["task", "domain", "template"]


@checked
@dataclass(kw_only=True, eq=False, repr=False)
class ReplayBuffer:
    """First-in-first-out store of successful trajectories, per task (arXiv 2505.16282, section 3.5).

    A group whose trajectories all failed has no advantage and so no gradient. `inject` puts one earlier success of
    the task in the place of one failure. In every iteration the groups are injected first, from what earlier
    iterations left, and only then is this iteration admitted:

        injected = [buffer.inject(group) for group in batch.groups]
        buffer.admit_all(batch.groups)

    The buffer holds records without screenshots, whose pixels are in the trajectory store. It owns
    its random numbers and draws none unless it injects: with an empty buffer ARPO is GRPO, bit for bit.

    Args:
        capacity_per_task: Successes kept per task, or per domain; the oldest goes when a new one arrives.
        seed: Of the buffer's own random numbers.
        success_threshold: A trajectory is a success when its task reward lies above it, and worth replaying when its
            whole reward does.
        format_weight: Weight of the format reward in the whole reward, the same as in the update's objective.
        trigger: Which groups get a replayed success. `all_failed`: those without a success. `official`: those whose
            task rewards have a population std below 0.05 and a mean below 0.2, as in the official code.
        replaced: Which member makes room: a `random` one (the paper), the `first` (the official code), that of the
            `oldest` policy (DART's code), or `none`, and the group grows by one (DART, arXiv 2509.23866).
        choice: Which stored success joins: a `random` one (both papers) or the `newest` (DART's code).
        key: Whose success may join a group: one of the same `task` (both papers), or where there are so many tasks
            that hardly one comes twice, of any task of the same `domain`, or of the same `template`: whose ids differ
            in the last part alone, as `calc/sort/7` and `calc/sort/8` do.
    """

    capacity_per_task: AtLeastOne = 8
    seed: int = 0
    success_threshold: Threshold = 0.5
    format_weight: NotNegative = 1.0
    trigger: Trigger = "all_failed"
    replaced: Replaced = "random"
    choice: Choice = "random"
    key: Key = "task"
    _entries: dict[str, deque[Trajectory]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __len__(self) -> int:
        """Return the number of stored trajectories."""
        return sum(len(entries) for entries in self._entries.values())

    def entries(self, key: str) -> tuple[Trajectory, ...]:
        """Return the stored successes of a task by its id, or of a domain by its name, oldest first."""
        return tuple(self._entries.get(key, ()))

    def one_of_each(self) -> list[Trajectory]:
        """Return one stored success of every task, or of every domain, drawn by chance."""
        return [self._random.choice(entries) for entries in self._entries.values()]

    def inject(self, group: Group) -> Group:
        """Return the group with a stored success in it, or the group itself where replay has no work.

        The replayed trajectory is one of those worth replaying (a buffer of an older run, or of another format
        weight, may hold others) and stays in the buffer. It comes without screenshots.
        """
        worthy = [trajectory for trajectory in self.candidates(group.task) if self.is_worth_replaying(trajectory)]
        if not worthy or not self._needs_success(group):
            return group
        success = self.choose(worthy, group)
        position = self._place(group.trajectories)
        trajectories = list(group.trajectories)
        trajectories[position : position + 1] = [success]
        return replace(group, trajectories=tuple(trajectories), injected=(*group.injected, position))

    def candidates(self, task: Task) -> tuple[Trajectory, ...]:
        """Return the stored trajectories that may join a group of a task, oldest first."""
        return self.entries(self._key(task))

    def choose(self, worthy: Sequence[Trajectory], group: Group) -> Trajectory:
        """Return the candidate that joins a group."""
        return worthy[-1] if self.choice == "newest" else self._random.choice(worthy)

    def admit(self, group: Group) -> int:
        """Store every success of a group that is worth replaying, in order, and return their number.

        A replayed trajectory, or one that is already stored, is not a new success and keeps its age.
        """
        key = self._key(group.task)
        stored = self._entries.get(key, deque(maxlen=self.capacity_per_task))
        known = {trajectory.id for trajectory in stored}
        fresh = [
            trajectory
            for position, trajectory in enumerate(group.trajectories)
            if position not in group.injected and trajectory.id not in known and self.is_worth_replaying(trajectory)
        ]
        if fresh:
            stored.extend(replace(trajectory, screenshots={}) for trajectory in fresh)
            self._entries[key] = stored
        return len(fresh)

    def admit_all(self, groups: Sequence[Group]) -> int:
        """Store every success of an iteration's groups, and return the number of new trajectories."""
        return sum(self.admit(group) for group in groups)

    def metrics(self, policy_version: int) -> dict[str, float]:
        """Return size, tasks or domains covered, and, unless empty, mean and largest age in policy versions."""
        ages = [policy_version - t.policy_version for entries in self._entries.values() for t in entries]
        metrics = {"size": float(len(ages)), "tasks": float(len(self._entries))}
        if ages:
            metrics |= {"age_mean": statistics.fmean(ages), "age_max": float(max(ages))}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return trajectory ids and random state, in built-ins only: a checkpoint must load with `weights_only`."""
        version, internal, gauss = self._random.getstate()
        return {
            "entries": {key: [t.id for t in entries] for key, entries in self._entries.items()},
            "random_state": [version, list(internal), gauss],
        }

    def load_state_dict(self, state: dict[str, Any], load: Callable[[str], Trajectory]) -> None:
        """Restore the buffer that returned the state, each trajectory by its id; a smaller one keeps the newest."""
        self._entries = {
            key: deque((self._read(id, key, load) for id in ids), maxlen=self.capacity_per_task)
            for key, ids in state["entries"].items()
        }
        version, internal, gauss = state["random_state"]
        self._random.setstate((version, tuple(internal), gauss))

    def is_worth_replaying(self, trajectory: Trajectory) -> bool:
        """Return whether the buffer would store a trajectory: one of which an update can learn, or a script's."""
        learned = trajectory.action_tokens > 0 or not trajectory.exchanges
        how = {"threshold": self.success_threshold, "format_weight": self.format_weight}
        return learned and is_worth_replaying(trajectory, **how)

    def _place(self, members: Sequence[Trajectory]) -> int:
        """Return the position of a replayed success: that of the member it replaces, or the one after the last."""
        match self.replaced:
            case "random":
                return self._random.randrange(len(members))
            case "first":
                return 0
            case "oldest":
                return min(range(len(members)), key=lambda position: members[position].policy_version)
            case "none":
                return len(members)

    def _needs_success(self, group: Group) -> bool:
        if self.trigger == "all_failed":
            return not any(is_success(t, threshold=self.success_threshold) for t in group.trajectories)
        rewards = [trajectory.task_reward for trajectory in group.trajectories]
        return statistics.pstdev(rewards) < 0.05 and statistics.fmean(rewards) < 0.2

    def _key(self, task: Task) -> str:
        return _keys(task.id, task.domain)[self.key]

    def _read(self, trajectory_id: str, key: str, load: Callable[[str], Trajectory]) -> Trajectory:
        trajectory = load(trajectory_id)
        keys = _keys(trajectory.task_id, trajectory.domain)
        found = keys.pop(self.key)
        other = next((name for name, value in keys.items() if value == key), None)
        if trajectory.id == trajectory_id and key != found and other:
            raise ConfigError(
                f"the checkpoint's replay buffer keeps successes by {other}, and key={self.key} would keep them by "
                f"{self.key}: resume with replay.buffer.key={other}, or start a new run"
            )
        if (trajectory.id, found) != (trajectory_id, key):
            raise CheckpointError(
                f"the checkpoint's replay buffer names trajectory {trajectory_id!r} of {self.key} {key!r}, but the "
                f"store gave {trajectory.id!r} of {self.key} {found!r}; resume with the run's own trajectory store"
            )
        return replace(trajectory, screenshots={})


def _keys(task_id: str, domain: str) -> dict[Key, str]:
    return {"task": task_id, "domain": domain, "template": task_id.rpartition("/")[0] or task_id}
