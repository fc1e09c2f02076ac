"""From the episodes that ended to the groups worth learning from, and what is measured on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arpo.rollout.meter import Meter
from arpo.rollout.sampler import TaskRequest
from arpo.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class CollectedGroups:
    """The groups of an iteration, and what is not among them."""

    groups: list[Group]
    leftovers: list[Group]
    """Trajectories that the update does not learn from: stale members, and the members of dropped groups."""
    too_small: int
    """Groups dropped because the infrastructure lost too many of their episodes."""
    stale: int
    """Groups dropped because too many of their members were stale."""
    stale_episodes: int
    """Trajectories left out because their oldest step was too many policy versions behind."""


def select_groups(
    requests: Sequence[TaskRequest],
    rows: Sequence[Sequence[Trajectory | None]],
    *,
    min_group_size: int,
    oldest: int,
) -> CollectedGroups:
    """Return the groups that are large enough once lost and stale members are left out, in the order of the requests.

    Args:
        requests: One a group.
        rows: One a group, a member each; None where an episode was lost.
        min_group_size: Least number of trajectories, or of those asked for, where that is less.
        oldest: Least policy version of every step.
    """
    groups: list[Group] = []
    leftovers: list[Group] = []
    too_small = stale = stale_episodes = 0
    for request, row in zip(requests, rows, strict=True):
        least = min(min_group_size, len(row))
        members = tuple(trajectory for trajectory in row if trajectory is not None)
        fresh = tuple(trajectory for trajectory in members if trajectory.policy_version >= oldest)
        stale_episodes += len(members) - len(fresh)
        if len(fresh) >= least:
            groups.append(Group(request.task, fresh))
            left = tuple(trajectory for trajectory in members if trajectory.policy_version < oldest)
        else:
            too_small += len(members) < least
            stale += len(members) >= least
            left = members
        if left:
            leftovers.append(Group(request.task, left))
    return CollectedGroups(groups, leftovers, too_small, stale, stale_episodes)


def rollout_metrics(collected: CollectedGroups, meter: Meter, *, environments: int) -> dict[str, float]:
    """Return what an iteration cost.

    `rollout/` counts what is in the batch or fell out of it; times and rates are of everything that ran, lost
    attempts among it. `env/utilization` is the share of their time that the environments worked.
    """
    elapsed_s = max(meter.elapsed_s, 1e-9)  # a clock that stood still, where every episode was resumed
    trajectories = [trajectory for group in collected.groups for trajectory in group.trajectories]
    return {
        "rollout/episodes": float(len(trajectories)),
        "rollout/env_steps": float(sum(len(trajectory.steps) for trajectory in trajectories)),
        "rollout/action_tokens": float(sum(trajectory.action_tokens for trajectory in trajectories)),
        "rollout/resumed_episodes": float(meter.resumed),
        "rollout/retried_episodes": float(meter.retried),
        "rollout/dropped_episodes": float(meter.dropped),
        "rollout/dropped_groups": float(collected.too_small),
        "rollout/stale_groups": float(collected.stale),
        "rollout/stale_episodes": float(collected.stale_episodes),
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
