"""Groups of trajectories on demand: what an update learns from, and what it cost to make it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arpo.errors import ArpoError, RolloutError
from arpo.inference.engine import figures
from arpo.rollout.groups import AdmittedGroup, GroupStream, ResumeState
from arpo.rollout.meter import Meter, together
from arpo.rollout.runner import TRAINING
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import TaskRequest, TaskSampler, TaskStatistics
from arpo.types import Group, RolloutBatch, Trajectory


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


class RolloutCollector:
    """A bridge from a trainer that blocks to groups that overlap: lets them go on, and takes an iteration's.

    Attributes:
        runtime: Plays the episodes.
        statistics: What came of each task; whoever checkpoints the task sampler checkpoints this too.
    """

    def __init__(self, runtime: RolloutRuntime) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.statistics = TaskStatistics(success_threshold=runtime.settings.success_threshold)
        self._stream: GroupStream | None = None
        self._sampler: TaskSampler | None = None
        self._window = Window({}, 0.0)
        self._taken_at: float | None = None

    def begin(self, sampler: TaskSampler, resumed: ResumeState) -> None:
        """Let groups be asked for and played from now on, as far ahead of `take` as `max_policy_lag` allows.

        Episodes that the store holds from before a crash are taken from there, where no later policy than
        that of the resumed run had a part in them, and they are fresh enough.

        Args:
            sampler: Says what to roll out next; asked on the rollout's event loop.
            resumed: Where the run stands. Its `stored` is filled from the store.
        """
        self.end()
        resumed = replace(resumed, stored=self.runtime.store.finished(resumed.first_iteration))
        runtime = self.runtime
        self._sampler = sampler
        self._window, self._taken_at = Window(runtime.counters(), time.monotonic()), None
        self._stream = GroupStream(
            runtime.runner,
            self.settings,
            resumed,
            lambda: sampler.next(self.statistics),
            lambda: runtime.served,
            runtime.changed,
        )
        runtime.show(self._progress)
        runtime.run(self._stream.begin())

    def take(self, iteration: int, policy_version: int) -> RolloutBatch:
        """Return the groups of the next iteration; blocks until the last of their episodes has ended.

        Which groups these are is the settings' `order`. They stand in the order in which they were asked for, and
        members in the order of their index, whatever the order in which episodes ended.

        Args:
            iteration: The one that is learned from; iterations are taken one after another.
            policy_version: Of the policy that learns from the batch; a trajectory that is too old for it is left out.
        """
        asked_at = time.monotonic()
        taken = self._wait(iteration, policy_version)
        waited_s = time.monotonic() - asked_at
        self.runtime.run(self._accept(taken))
        meter = together([group.meter for group in taken])
        requests = [group.asked.request for group in taken]
        collected = select_groups(
            requests,
            [group.row for group in taken],
            min_group_size=self.settings.min_group_size,
            oldest=policy_version - self.settings.max_policy_lag,
        )
        if not collected.groups:
            raise RolloutError(
                f"iteration {iteration} has no group left to learn from: {collected.too_small} too small because "
                f"{meter.dropped} of {meter.total} episodes were lost, {collected.stale} too old for policy "
                f"version {policy_version}; last causes: {meter.last_causes}"
            )
        window = Window(self.runtime.counters(), time.monotonic())
        began, ended = max(meter.started, self._window.at), max(meter.ended or asked_at, asked_at)
        metrics = rollout_metrics(collected, meter, policy_version=policy_version, elapsed_s=ended - began)
        metrics |= window.since(self._window, environments=self.runtime.pool.size)
        metrics |= self._queues() | {"time/wait": waited_s}
        if self._taken_at is not None:  # of the first iteration, nobody knows the beginning
            metrics["time/iteration"] = window.at - self._taken_at
        self._window, self._taken_at = window, window.at
        return RolloutBatch(iteration, policy_version, collected.groups, metrics, collected.leftovers)

    @property
    def stream(self) -> GroupStream:
        """The groups that were begun."""
        if self._stream is None:
            raise ArpoError("nothing is collected: call begin() first, and nothing after end()")
        return self._stream

    def state_dict(self) -> dict[str, Any]:
        """Return sampler, statistics and what was asked for and not learned from, all of one moment."""
        return self.runtime.run(self._state())

    def end(self) -> None:
        """End what was begun; the runtime goes on. Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self.runtime.show(Meter)
            self.runtime.run(stream.close())

    def close(self) -> None:
        """End what was begun and close the runtime. Idempotent."""
        try:
            if self._stream is not None and self.runtime.answers():
                self.end()
        finally:  # also after a second Ctrl-C
            self._stream = None
            self.runtime.close()

    def _wait(self, iteration: int, policy_version: int) -> list[AdmittedGroup]:
        stream = self.stream
        self.runtime.show(self._progress)
        future = self.runtime.submit(stream.complete(policy_version))

        def who() -> str:
            ended = sum(group.ended_as is not None for group in stream.waiting())
            return f"the trainer waits for iteration {iteration}; {ended} of {len(stream.waiting())} groups have ended"

        try:
            return self.runtime.watch(future, who)
        except BaseException:  # an interrupted wait may be repeated, and must not go on beside the second one
            future.cancel()
            raise

    async def _accept(self, taken: Sequence[AdmittedGroup]) -> None:
        for group in taken:
            self.statistics.record(group.asked.request.task.id, group.row)
        meter = together([group.meter for group in taken])
        self.runtime.show(lambda: meter)
        self.stream.release(taken)  # and only now the sampler may be asked again

    async def _state(self) -> dict[str, Any]:
        assert self._sampler is not None
        return {
            "sampler": self._sampler.state_dict(),
            "statistics": self.statistics.state_dict(),
            "pending": [asked.record() for asked in self.stream.asked()],
        }

    def _progress(self) -> Meter:
        """Return what the groups have cost that the next iteration would be made of, were it of the first ones."""
        stream, sampler = self._stream, self._sampler
        if stream is None or sampler is None:  # it was ended meanwhile, by another thread than this one
            return Meter()
        groups = sorted(stream.waiting(), key=lambda group: group.number)[: sampler.tasks_per_iteration]
        meter = together([group.meter for group in groups])
        meter.name = TRAINING
        meter.total += (sampler.tasks_per_iteration - len(groups)) * self.settings.group_size
        return meter

    def _queues(self) -> dict[str, float]:
        waiting = self.stream.waiting()
        ended = sum(group.ended_as is not None for group in waiting)
        return {
            "rollout/groups_ended": float(ended),
            "rollout/groups_running": float(len(waiting) - ended),
            "rollout/episodes_queued": float(sum(self.runtime.runner.turns.queued().values())),
        }
