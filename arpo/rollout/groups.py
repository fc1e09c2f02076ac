"""The stream of groups: asked for one by one, played side by side, and chosen an iteration at a time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from arpo.host.threads import Signal
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.meter import Meter
from arpo.rollout.runner import TRAINING, EpisodeRunner
from arpo.rollout.sampler import TaskRequest
from arpo.rollout.seeds import derive_seed
from arpo.rollout.settings import Order, RolloutSettings
from arpo.types import Trajectory


@dataclass(frozen=True, slots=True)
class RequestedGroup:
    """A group that was asked for."""

    number: int
    """Its place among all groups of the run, from 0; with the number of groups an iteration it gives its name."""
    request: TaskRequest

    def record(self) -> tuple[int, str, int | None, int | None]:
        """Return built-ins for a checkpoint: number, task id, group size and step limit."""
        return self.number, self.request.task.id, self.request.group_size, self.request.max_steps


@dataclass(frozen=True, slots=True)
class Served:
    """The policy versions that an engine serves after an update; two, where a fleet takes it one by one."""

    oldest: int = 0
    newest: int = 0


@dataclass(slots=True, eq=False)
class AdmittedGroup:
    """A group that was asked for and not yet learned from."""

    asked: RequestedGroup
    meter: Meter
    row: Sequence[Trajectory | None] = ()
    """One trajectory a member, None where an episode was lost; empty while an episode runs."""
    ended_as: int | None = None
    began: int | None = None
    """The oldest version that may have answered the first request."""

    @property
    def number(self) -> int:
        """Its place among all groups of the run."""
        return self.asked.number

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
    """Of the policy that learns from it."""
    per_iteration: int
    """Groups that an update learns from."""
    last: int | None = None
    """The number of iterations of the run; None: nobody knows."""
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

    Args:
        candidates: Every group that was asked for and not yet learned from.
        count: Groups that an update learns from.
        order: Which ones.
        version: Of the policy that learns.
        lag: Versions that a step may be old.
    """
    by_number = sorted(candidates, key=lambda group: group.number)
    if order == "submitted":
        chosen = by_number[:count]
        return chosen if len(chosen) == count and all(group.ended_as is not None for group in chosen) else None
    chosen = []
    for updates_left in range(lag + 1):
        due = [group for group in by_number if _updates_left(group, version, lag) <= updates_left]
        needed = min(len(due) - updates_left * count, count) - len(chosen)
        if not _take_first_ended(needed, due, chosen):
            return None
    if not _take_first_ended(count - len(chosen), by_number, chosen):
        return None
    return sorted(chosen, key=lambda group: group.number)


def _updates_left(group: AdmittedGroup, version: int, lag: int) -> float:
    """Return how many updates later than the next one may still learn from a group."""
    return float("inf") if group.oldest is None else group.oldest + lag - version


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
    groups that the next version will play. With k = 0, nothing is admitted before the trainer asks for it.
    """

    def __init__(
        self,
        runner: EpisodeRunner,
        settings: RolloutSettings,
        resumed: ResumeState,
        next_request: Callable[[], TaskRequest],
        served: Callable[[], Served],
        changed: Signal,
    ) -> None:
        """Take the parts; nothing is admitted before `begin`.

        Args:
            runner: Plays the groups.
            settings: The bounds, the order and the numbers of an episode.
            resumed: Where the run stands.
            next_request: Asks the sampler for one group.
            served: Returns the versions of the policy that the engine serves.
            changed: Notified when the engine serves another version; the stream notifies it too.
        """
        self._runner = runner
        self._settings = settings
        self._resumed = resumed
        self._next_request = next_request
        self._served = served
        self._changed = changed
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

        They stay in the stream until `release`: who was interrupted before it got them may ask again.
        """
        self._wanted = True
        chosen: list[AdmittedGroup] = []

        def complete() -> bool:
            chosen[:] = self._choose(policy_version)
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
            del self._groups[group.number]
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

    def _choose(self, policy_version: int) -> list[AdmittedGroup]:
        lag, order = self._settings.max_policy_lag, self._settings.order
        count = self._resumed.per_iteration
        return choose(self._groups.values(), count, order, version=policy_version, lag=lag) or []

    # --- admission

    async def _feed(self) -> None:
        for asked in list(self._again):
            self._again.remove(asked)
            self._admit(asked)
        while not self._is_last():
            await self._changed.until(self._has_room)
            # A turn comes when every episode before this group's has got one: only then is its task decided.
            async with self._runner.turns.turn(TRAINING):
                self._admit(RequestedGroup(self._admitted, self._next_request()))
                for _ in range(2):  # the group's task makes its episodes, and then these ask for turns before we do
                    await asyncio.sleep(0)

    def _is_last(self) -> bool:
        return self._resumed.last is not None and self._admitted >= self._resumed.last * self._resumed.per_iteration

    def _has_room(self) -> bool:
        count, lag = self._resumed.per_iteration, self._settings.max_policy_lag
        return self._admitted < self._taken + (lag + 1) * count and (self._wanted or lag > 0)

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
            EpisodeSpec.of(
                request.task,
                self._settings,
                id=f"{iteration}/{place}/{member}",
                seed=derive_seed(self._settings.seed, iteration, request.task.id, place, member),
                max_steps=request.max_steps,
            )
            for member in range(request.group_size or self._settings.group_size)
        )

    async def _play(self, group: AdmittedGroup, specs: tuple[EpisodeSpec, ...]) -> None:
        async def may_ask() -> int:
            return await self._wait_for_version(group)

        finished = self._finished(group, specs)
        (row,) = await self._runner.run((specs,), group.meter, finished, may_ask=may_ask)
        group.row = row
        group.ended_as = self._ended
        self._ended += 1
        self._changed.notify()

    def _finished(self, group: AdmittedGroup, specs: Sequence[EpisodeSpec]) -> dict[str, Trajectory]:
        """Return the stored episodes of a group that the update which learns from it may still use."""
        stored = {spec.id: self._resumed.stored.pop(spec.id) for spec in specs if spec.id in self._resumed.stored}
        learned_at = max(self._resumed.learned_at(group.number), self._resumed.policy_version)
        oldest, newest = learned_at - self._settings.max_policy_lag, self._resumed.policy_version
        fresh = {
            id: trajectory
            for id, trajectory in stored.items()
            if all(oldest <= step.policy_version <= newest for step in trajectory.steps)
        }
        group.began = min((trajectory.policy_version for trajectory in fresh.values()), default=None)
        return fresh

    async def _wait_for_version(self, group: AdmittedGroup) -> int:
        """Return the oldest version that may play a group, as soon as the engine serves it."""
        first = self._resumed.learned_at(group.number) - self._settings.max_policy_lag
        activity = self._runner.activity
        activity.held += 1
        try:
            await self._changed.until(lambda: self._served().newest >= first)
        finally:
            activity.held -= 1
        began = max(first, self._served().oldest)
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
