"""Groups of trajectories on demand: what an update learns from, and what it cost to make it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arpo.errors import ArpoError, RolloutError
from arpo.rollout.flow.groups import Window, rollout_metrics, select_groups
from arpo.rollout.flow.stream import AdmittedGroup, GroupStream, ResumeState
from arpo.rollout.meter import Meter, together
from arpo.rollout.runner import TRAINING
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import TaskSampler, TaskStatistics
from arpo.types import RolloutBatch


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

    def begin(self, sampler: TaskSampler, course: ResumeState) -> None:
        """Let groups be asked for and played from now on, as far ahead of `take` as `max_policy_lag` allows.

        Episodes that the store holds from before a crash are taken from there, where no later policy than the
        course's had a part in them, and they are fresh enough.

        Args:
            sampler: Says what to roll out next; asked on the rollout's event loop.
            course: Where the run stands. Its `stored` is filled from the store.
        """
        self.end()
        course = replace(course, stored=self.runtime.store.finished(course.first_iteration))
        runtime = self.runtime
        self._sampler = sampler
        self._window, self._taken_at = Window(runtime.counters(), time.monotonic()), None
        self._stream = GroupStream(
            runtime.runner,
            self.settings,
            course,
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

        Raises:
            RolloutError: If no group is left to learn from, or nothing happened for `stall_s`.
            ArpoError: If an episode ended in an error that is no infrastructure failure, such as a full disk.
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

    def state_dict(self) -> dict[str, Any]:
        """Return sampler, statistics and what was asked for and not learned from, all of one moment.

        Raises:
            ArpoError: If nothing was begun.
        """
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

    @property
    def _running(self) -> GroupStream:
        if self._stream is None:
            raise ArpoError("nothing is collected: call begin() first, and nothing after end()")
        return self._stream

    def _wait(self, iteration: int, policy_version: int) -> list[AdmittedGroup]:
        stream = self._running
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
        self._running.release(taken)  # and only now the sampler may be asked again

    async def _state(self) -> dict[str, Any]:
        assert self._sampler is not None
        return {
            "sampler": self._sampler.state_dict(),
            "statistics": self.statistics.state_dict(),
            "pending": [asked.record() for asked in self._running.asked()],
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
        waiting = self._running.waiting()
        ended = sum(group.ended_as is not None for group in waiting)
        return {
            "rollout/groups_ended": float(ended),
            "rollout/groups_running": float(len(waiting) - ended),
            "rollout/episodes_queued": float(sum(self.runtime.runner.turns.queued().values())),
        }
