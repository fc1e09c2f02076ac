"""From the episodes that ended to the groups worth learning from, and what is measured on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arpo.rollout.meter import Meter
from arpo.rollout.sampler import TaskRequest
from arpo.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Selection:
    """The groups of an iteration, and how many are not among them."""

    groups: list[Group]
    too_small: int
    """Dropped because the infrastructure lost too many of their episodes."""
    stale: int
    """Dropped because their oldest step was too many policy versions behind."""


def select_groups(
    requests: Sequence[TaskRequest],
    rows: Sequence[Sequence[Trajectory | None]],
    *,
    min_group_size: int,
    oldest: int,
) -> Selection:
    """Return the groups that are large and fresh enough, in the order of the requests.

    Args:
        requests: One a group.
        rows: One a group, a member each; None where an episode was lost.
        min_group_size: Least number of trajectories, or of those asked for, where that is less.
        oldest: Least policy version of every step.
    """
    groups: list[Group] = []
    too_small = stale = 0
    for request, row in zip(requests, rows, strict=True):
        members = tuple(trajectory for trajectory in row if trajectory is not None)
        if len(members) < min(min_group_size, len(row)):
            too_small += 1
        elif min(trajectory.policy_version for trajectory in members) < oldest:
            stale += 1
        else:
            groups.append(Group(request.task, members))
    return Selection(groups, too_small, stale)


def rollout_metrics(selection: Selection, meter: Meter, elapsed_s: float, *, environments: int) -> dict[str, float]:
    """Return what an iteration cost.

    `rollout/` counts what is in the batch or fell out of it; times and rates are of everything that ran, lost
    attempts among it. `env/utilization` is the share of their time that the environments worked.
    """
    elapsed_s = max(elapsed_s, 1e-9)  # a clock that stood still, where every episode was resumed
    trajectories = [trajectory for group in selection.groups for trajectory in group.trajectories]
    return {
        "rollout/episodes": float(len(trajectories)),
        "rollout/env_steps": float(sum(len(trajectory.steps) for trajectory in trajectories)),
        "rollout/action_tokens": float(sum(trajectory.action_tokens for trajectory in trajectories)),
        "rollout/resumed_episodes": float(meter.resumed),
        "rollout/retried_episodes": float(meter.retried),
        "rollout/dropped_episodes": float(meter.dropped),
        "rollout/dropped_groups": float(selection.too_small),
        "rollout/stale_groups": float(selection.stale),
        "time/rollout": elapsed_s,
        "time/generate": meter.generate_s,
        "time/env": meter.env_s,
        "env/steps_per_s": meter.steps / elapsed_s,
        "env/utilization": meter.env_s / (elapsed_s * environments),
        "engine/tokens_per_s": meter.tokens / elapsed_s,
    }


def difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each cumulative counter has grown."""
    return {name: value - before.get(name, 0.0) for name, value in now.items()}
