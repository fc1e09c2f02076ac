"""From the episodes that ended to the groups worth learning from, and what is measured on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arpo.inference.engine import figures
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


def rollout_metrics(
    collected: CollectedGroups, meter: Meter, *, policy_version: int, elapsed_s: float
) -> dict[str, float]:
    """Return what the groups of an iteration cost.

    `rollout/` counts what is in the batch or fell out of it; times and rates are of everything that its groups ran,
    lost attempts among it. `rollout/lag_mean` and `rollout/lag_max` are of the steps in the batch: the versions by
    which the policy that learns from a step is newer than the one that took it.

    Args:
        collected: The groups.
        meter: What their episodes did, together.
        policy_version: Of the policy that learns from them.
        elapsed_s: Seconds in which an iteration's worth of episodes was played.
    """
    elapsed_s = max(elapsed_s, 1e-9)  # a clock that stood still, where every episode was resumed
    trajectories = [trajectory for group in collected.groups for trajectory in group.trajectories]
    lags = [policy_version - step.policy_version for trajectory in trajectories for step in trajectory.steps]
    return {
        "rollout/episodes": float(len(trajectories)),
        "rollout/env_steps": float(sum(len(trajectory.steps) for trajectory in trajectories)),
        "rollout/action_tokens": float(sum(trajectory.action_tokens for trajectory in trajectories)),
        "rollout/lag_mean": sum(lags) / max(len(lags), 1),
        "rollout/lag_max": float(max(lags, default=0)),
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
        "engine/tokens_per_s": meter.tokens / elapsed_s,
    }


ACTING = ("env/reset_s", "env/step_s", "env/evaluate_s")


@dataclass(frozen=True, slots=True)
class Window:
    """A moment of a run: the end of one iteration's window of time, and the begin of the next one's."""

    counters: Mapping[str, float]
    """The cumulative counters of environments and engine."""
    at: float
    """The monotonic clock."""

    def since(self, before: "Window", *, environments: int) -> dict[str, float]:
        """Return by how much each counter has grown, and what environments did with their time.

        Of the time of all environments, whatever the trainer did meanwhile, `env/leased` is the share that belonged
        to an episode (the utilization that DART counts, arXiv 2509.23866), and `env/acting` the share in which an
        environment reset, acted or judged.
        """
        grown = {name: value - before.counters.get(name, 0.0) for name, value in self.counters.items()}
        elapsed_s = max(self.at - before.at, 1e-9)
        time_s = elapsed_s * environments
        acting_s = sum(grown.get(name, 0.0) for name in ACTING)
        return figures(grown, elapsed_s) | {
            "env/leased": grown.get("env/busy_s", 0.0) / time_s,
            "env/acting": acting_s / time_s,
        }
