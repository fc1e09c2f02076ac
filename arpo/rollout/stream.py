"""The stream of groups: asked for one by one, played side by side, and taken an iteration at a time."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from arpo.errors import ArpoError, RolloutError
from arpo.rollout.episode import EpisodeSpec, Meter, sum_meters
from arpo.rollout.runtime import TRAINING, RolloutRuntime
from arpo.rollout.sampler import ShuffledTasks, TaskRequest, TaskStatistics, derive_seed
from arpo.rollout.settings import Order
from arpo.types import Group, RolloutBatch, Trajectory


@dataclass(frozen=True, slots=True)
class RequestedGroup:
    """A group that was asked for."""

    number: int
    """Its place among all groups of the run, from 0."""
    request: TaskRequest

    def record(self) -> tuple[int, str, int | None, int | None]:
        """Return built-ins for a checkpoint: number, task id, group size and step limit."""
        return self.number, self.request.task.id, self.request.group_size, self.request.max_steps


@dataclass(slots=True, eq=False)
class AdmittedGroup:
    """A group that was asked for and not yet learned from."""

    asked: RequestedGroup
    meter: Meter
    row: Sequence[Trajectory | None] = ()
    """One trajectory a member, None where it was lost; empty while an episode runs."""
    ended_as: int | None = None
    began: int | None = None
    """The oldest version that may have answered the first request."""

    @property
    def oldest(self) -> int | None:
        """The oldest policy version of its steps, as far as it is known; None before the first one."""
        versions = [trajectory.policy_version for trajectory in self.row if trajectory is not None]
        return min(versions) if versions else self.began


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The place of a run in its stream of groups."""

    iteration: int
    """The next one to be learned from."""
    policy_version: int
    per_iteration: int
    """Groups that an update learns from."""
    last: int | None = None
    """The number of iterations of the run, if it is known."""
    asked: Sequence[RequestedGroup] = ()
    """Groups that an earlier process asked for and no update has learned from."""
    stored: dict[str, Trajectory] = field(default_factory=dict)
    """Episodes by id that need not be made again, where they are fresh enough; the stream takes out what it uses."""

    @property
    def first_iteration(self) -> int:
        """The first iteration after which a group was named that may be played or learned from again."""
        return min([self.iteration, *(asked.number // self.per_iteration for asked in self.asked)])

    def learned_at(self, number: int) -> int:
        """Return the policy version that learns from a group, where groups are learned from in their order."""
        return number // self.per_iteration - self.iteration + self.policy_version


def choose(
    candidates: Iterable[AdmittedGroup], count: int, order: Order, *, version: int, lag: int
) -> list[AdmittedGroup] | None:
    """Return the groups of the next update by their numbers, or None where it has to wait for one of them.

    In the order `finished`, a group must be learned from before its oldest step is more than `lag` versions old. As
    an update takes `count` groups, of those with h updates left at most h × `count` may stay behind: what is above
    is taken now. That is the rule of the earliest deadline, under which no group becomes stale as long as no more
    than (v + `lag` + 1) × `count` groups have had a step of version v or older when version v is learned from.
    """
    by_number = sorted(candidates, key=lambda group: group.asked.number)
    if order == "submitted":
        chosen = by_number[:count]
        return chosen if len(chosen) == count and all(group.ended_as is not None for group in chosen) else None
    chosen = []
    for updates_left in range(lag + 1):
        newest = version - lag + updates_left  # a group of this version has so many updates left after the next one
        due = [group for group in by_number if group.oldest is not None and group.oldest <= newest]
        needed = min(len(due) - updates_left * count, count) - len(chosen)
        if not _take_first_ended(needed, due, chosen):
            return None
    if not _take_first_ended(count - len(chosen), by_number, chosen):
        return None
    return sorted(chosen, key=lambda group: group.asked.number)


def _take_first_ended(needed: int, among: Sequence[AdmittedGroup], chosen: list[AdmittedGroup]) -> bool:
    """Add to `chosen` the groups that ended first; return whether there were enough of them."""
    ended = [(group.ended_as, group) for group in among if group.ended_as is not None and group not in chosen]
    ended.sort(key=lambda pair: pair[0])
    chosen += [group for _, group in ended[: max(needed, 0)]]
    return len(ended) >= needed


class GroupStream:
    """The groups of a run on the event loop: admits them as far as the bounds allow, and hands them over.

    Two bounds. Of memory: at most (k + 1) iterations of groups are admitted and not yet released, with k the
    `max_policy_lag`. Of age: group n of G an iteration asks the engine for nothing before the version that is at most
    k behind the update ⌊n / G⌋. Between the two, while the trainer updates, environments are reset already for the
    groups that the next version will play. With k = 0, nothing is admitted before the trainer asks for it, and with
    any k nothing before `begin`.
    """

    def __init__(
        self, runtime: RolloutRuntime, resumed: ResumeState, sampler: ShuffledTasks, statistics: TaskStatistics
    ) -> None:
        """Take the player of groups, the place of the run, and the choice of groups with the statistics it reads."""
        self.sampler = sampler
        self._statistics = statistics
        self._runtime = runtime
        self._runner = runtime.runner
        self._settings = runtime.settings
        self._changed = runtime.changed
        self._resumed = resumed
        self._admitted = resumed.iteration * resumed.per_iteration
        self._taken = self._admitted
        self._wanted = False
        """Whether the trainer has asked for the next iteration."""
        self._again = list(resumed.asked)
        self._groups: dict[int, AdmittedGroup] = {}
        self._ended = 0
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Begin to admit groups."""
        self._start(self._feed())

    async def complete(self, policy_version: int) -> list[AdmittedGroup]:
        """Return the groups of the next iteration by their numbers, when all of their episodes have ended.

        They stay in the stream until `release`: a caller that was interrupted may ask again.
        """
        self._wanted = True
        chosen: list[AdmittedGroup] = []
        lag, order, count = self._settings.max_policy_lag, self._settings.order, self._resumed.per_iteration

        def complete() -> bool:
            chosen[:] = choose(self._groups.values(), count, order, version=policy_version, lag=lag) or []
            return bool(chosen) or self._failure is not None

        self._changed.notify()
        await self._changed.until(complete)
        if self._failure is not None:
            await self.close()
            raise self._failure
        return chosen

    def release(self, taken: Sequence[AdmittedGroup]) -> None:
        """Let groups go that an update learns from, and others come in their place."""
        for group in taken:
            del self._groups[group.asked.number]
        self._taken += len(taken)
        self._wanted = False
        self._changed.notify()

    def asked(self) -> list[RequestedGroup]:
        """Return every group that was asked for and not yet released, by number."""
        waiting = [*(group.asked for group in list(self._groups.values())), *self._again]
        return sorted(waiting, key=lambda asked: asked.number)

    def waiting(self) -> list[AdmittedGroup]:
        """Return every group that is played or has ended and is not yet released; allowed from any thread."""
        return list(self._groups.values())

    async def close(self) -> None:
        """End everything that runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- admission

    async def _feed(self) -> None:
        for asked in list(self._again):
            self._again.remove(asked)
            self._admit(asked)
        count, lag, last = self._resumed.per_iteration, self._settings.max_policy_lag, self._resumed.last
        while last is None or self._admitted < last * count:
            await self._changed.until(
                lambda: self._admitted < self._taken + (lag + 1) * count and (self._wanted or lag > 0)
            )
            # A turn comes when every episode before this group's has got one: only then is its task decided.
            async with self._runner.turns.turn(TRAINING):
                self._admit(RequestedGroup(self._admitted, self.sampler.next(self._statistics)))
                for _ in range(2):  # the group's task makes its episodes, and then these ask for turns before we do
                    await asyncio.sleep(0)

    def _admit(self, asked: RequestedGroup) -> None:
        self._admitted += 1
        specs = self._specs(asked)
        meter = Meter(TRAINING, total=len(specs), activity=self._runner.activity)
        group = self._groups[asked.number] = AdmittedGroup(asked, meter)
        self._start(self._play(group, specs))

    def _specs(self, asked: RequestedGroup) -> tuple[EpisodeSpec, ...]:
        """Return the episodes of a group; their seeds depend on run, iteration, task, group and member alone."""
        iteration, place = divmod(asked.number, self._resumed.per_iteration)
        request = asked.request
        return tuple(
            EpisodeSpec(
                f"{iteration}/{place}/{member}",
                request.task,
                derive_seed(self._settings.seed, iteration, request.task.id, place, member),
                self._settings,
                step_limit=request.max_steps,
            )
            for member in range(request.group_size or self._settings.group_size)
        )

    async def _play(self, group: AdmittedGroup, specs: tuple[EpisodeSpec, ...]) -> None:
        may_ask = partial(self._wait_for_version, group)
        (group.row,) = await self._runner.run((specs,), group.meter, self._finished(group, specs), may_ask=may_ask)
        group.ended_as = self._ended
        self._ended += 1
        self._changed.notify()

    def _finished(self, group: AdmittedGroup, specs: Sequence[EpisodeSpec]) -> dict[str, Trajectory]:
        """Return the stored episodes of a group that the update which learns from it may still use."""
        stored = {spec.id: self._resumed.stored.pop(spec.id) for spec in specs if spec.id in self._resumed.stored}
        learned_at = max(self._resumed.learned_at(group.asked.number), self._resumed.policy_version)
        oldest, newest = learned_at - self._settings.max_policy_lag, self._resumed.policy_version
        fresh = {
            id: trajectory
            for id, trajectory in stored.items()
            if all(oldest <= each.policy_version <= newest for each in trajectory.exchanges)
        }
        group.began = min((trajectory.policy_version for trajectory in fresh.values()), default=None)
        return fresh

    async def _wait_for_version(self, group: AdmittedGroup) -> int:
        """Return the oldest version that may play a group, as soon as the engine serves it."""
        first = self._resumed.learned_at(group.asked.number) - self._settings.max_policy_lag
        activity = self._runner.activity
        activity.held += 1
        try:
            await self._changed.until(lambda: self._runtime.served.newest >= first)
        finally:
            activity.held -= 1
        began = max(first, self._runtime.served.oldest)
        group.began = began if group.began is None else min(group.began, began)
        return first

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
            self._changed.notify()


@dataclass(frozen=True, slots=True)
class CollectedGroups:
    """The groups of an iteration, and what is not among them."""

    groups: list[Group]
    leftovers: list[Group]
    """Stale members, and the members of dropped groups."""
    too_small: int
    """Groups dropped because the infrastructure lost too many of their episodes."""
    stale: int
    """Groups dropped because too many of their members were stale."""
    stale_episodes: int


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
        rows: One a group.
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
    """Return the cost of the groups of an iteration by metric.

    `rollout/` counts what is in the batch or fell out of it; times and rates are of everything that its groups ran,
    lost attempts among it. `rollout/lag_mean` and `rollout/lag_max` are of the steps in the batch: the versions by
    which `policy_version`, that of the policy that learns, is newer than the one that took a step.
    """
    elapsed_s = max(elapsed_s, 1e-9)  # a clock that stood still, where every episode was resumed
    trajectories = [trajectory for group in collected.groups for trajectory in group.trajectories]
    lags = [policy_version - each.policy_version for trajectory in trajectories for each in trajectory.exchanges]
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


def engine_metrics(grown: Mapping[str, float], elapsed_s: float) -> dict[str, float]:
    """Return the growth of an engine's counters with rates and shares in the place of sums.

    Seconds of requests become their mean number (`in_flight`, `waiting`), tokens become `tokens_per_s`, and prompt
    tokens and pictures the shares that came from caches (`prompt_cached`, `pictures_cached`). Of a foreign agent's
    exchanges but the first ones `continued_share` is the share that went on from an earlier one. The rest stays.
    """
    found: dict[str, float] = {}
    sums: dict[str, dict[str, float]] = defaultdict(dict)
    for metric, value in grown.items():
        place, _, name = metric.rpartition("/")
        if metric.startswith("engine/") and name in _SUMS:
            sums[place][name] = value
        else:
            found[metric] = value
    if later := grown.get("harness/continued", 0.0) + grown.get("harness/forked", 0.0):
        found["harness/continued_share"] = grown["harness/continued"] / later
    for place, of in sums.items():
        found |= {f"{place}/{rate}": of[total] / elapsed_s for total, rate in _RATES.items() if total in of}
        for whole, share in _SHARES.items():
            if of.get(whole):  # a share of nothing is none
                found[f"{place}/{share}_cached"] = of[f"cached_{whole}"] / of[whole]
    return found


_RATES = {"in_flight_s": "in_flight", "waiting_s": "waiting", "tokens": "tokens_per_s"}
_SHARES = {"prompt_tokens": "prompt", "pictures": "pictures"}
_SUMS = {*_RATES, *_SHARES, *(f"cached_{name}" for name in _SHARES)}


@dataclass(frozen=True, slots=True)
class Window:
    """A moment of a run: the end of one iteration's window of time, and the begin of the next one's."""

    counters: Mapping[str, float]
    """Cumulative, of environments and engine."""
    at: float

    def since(self, before: "Window", *, environments: int) -> dict[str, float]:
        """Return by how much each counter has grown, and the shares of the environments' time.

        `env/leased` is the share that belonged to an episode (the utilization that DART counts, arXiv 2509.23866), and
        `env/acting` the share in which an environment reset, acted or judged.
        """
        grown = {name: value - before.counters.get(name, 0.0) for name, value in self.counters.items()}
        elapsed_s = max(self.at - before.at, 1e-9)
        time_s = elapsed_s * environments
        acting_s = sum(grown.get(f"env/{call}_s", 0.0) for call in ("reset", "step", "evaluate"))
        return engine_metrics(grown, elapsed_s) | {
            "env/leased": grown.get("env/busy_s", 0.0) / time_s,
            "env/acting": acting_s / time_s,
        }


class RolloutCollector:
    """A bridge from a trainer that blocks to groups that overlap: lets them go on, and takes an iteration's.

    The `statistics` of tasks belong in a checkpoint beside the task sampler.
    """

    def __init__(self, runtime: RolloutRuntime) -> None:
        self.runtime = runtime
        self.settings = runtime.settings
        self.statistics = TaskStatistics(success_threshold=runtime.settings.success_threshold)
        self._stream: GroupStream | None = None
        self._window = Window({}, 0.0)
        self._taken_at: float | None = None

    def begin(self, sampler: ShuffledTasks, resumed: ResumeState) -> None:
        """Let groups be asked for and played from now on, as far ahead of `take` as `max_policy_lag` allows.

        Episodes that the store holds from before a crash are taken from there, where no later policy than
        that of the resumed run had a part in them, and they are fresh enough.

        Args:
            sampler: Asked on the rollout's event loop.
            resumed: The place of the run; its `stored` is filled from the store.
        """
        self.end()
        resumed = replace(resumed, stored=self.runtime.store.finished(resumed.first_iteration))
        self._window, self._taken_at = Window(self.runtime.counters(), time.monotonic()), None
        self._stream = GroupStream(self.runtime, resumed, sampler, self.statistics)
        self.runtime.show(self._progress)
        self.runtime.run(self._stream.begin())

    def take(self, iteration: int, policy_version: int) -> RolloutBatch:
        """Return the groups of the next iteration; blocks until the last of their episodes has ended.

        They stand in the order in which they were asked for, and members in the order of their index, whatever the
        order in which episodes ended. Trajectories that are too old for the policy version, that of the policy that
        learns, are left out.
        """
        asked_at = time.monotonic()
        taken = self._wait(iteration, policy_version)
        waited_s = time.monotonic() - asked_at
        meter = sum_meters([group.meter for group in taken])
        self.runtime.run(self._accept(taken, meter))
        collected = select_groups(
            [group.asked.request for group in taken],
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
        elapsed_s = max(meter.ended or asked_at, asked_at) - max(meter.started, self._window.at)
        metrics = rollout_metrics(collected, meter, policy_version=policy_version, elapsed_s=elapsed_s)
        metrics |= window.since(self._window, environments=self.runtime.pool.size)
        ended, waiting = self._count()
        metrics |= {
            "time/wait": waited_s,
            "rollout/groups_ended": float(ended),
            "rollout/groups_running": float(waiting - ended),
            "rollout/episodes_queued": float(sum(self.runtime.runner.turns.queued().values())),
        }
        if self._taken_at is not None:  # the beginning of the first iteration is unknown
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
        stream = self.stream

        async def state() -> dict[str, Any]:
            return {
                "sampler": stream.sampler.state_dict(),
                "statistics": self.statistics.state_dict(),
                "pending": [asked.record() for asked in stream.asked()],
            }

        return self.runtime.run(state())

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
        self.runtime.show(self._progress)
        future = self.runtime.submit(self.stream.complete(policy_version))

        def waits_for() -> str:
            ended, waiting = self._count()
            return f"the trainer waits for iteration {iteration}; {ended} of {waiting} groups have ended"

        try:
            return self.runtime.watch(future, waits_for)
        except BaseException:  # an interrupted wait may be repeated, and must not go on beside the second one
            future.cancel()
            raise

    async def _accept(self, taken: Sequence[AdmittedGroup], meter: Meter) -> None:
        for group in taken:
            self.statistics.record(group.asked.request.task.id, group.row)
        self.runtime.show(lambda: meter)
        self.stream.release(taken)  # and only now the sampler may be asked again

    def _progress(self) -> Meter:
        """Return the cost so far of the groups of the next iteration, were it made of the first ones."""
        stream = self._stream
        if stream is None:  # it was ended meanwhile, by another thread than this one
            return Meter()
        groups = sorted(stream.waiting(), key=lambda group: group.asked.number)[: stream.sampler.tasks_per_iteration]
        meter = sum_meters([group.meter for group in groups])
        meter.name = TRAINING
        meter.total += (stream.sampler.tasks_per_iteration - len(groups)) * self.settings.group_size
        return meter

    def _count(self) -> tuple[int, int]:
        """Return the number of groups that have ended and are not released yet, and that of all."""
        waiting = self.stream.waiting()
        return sum(group.ended_as is not None for group in waiting), len(waiting)
