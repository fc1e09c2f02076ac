"""Costs and progress of a rollout, counted while it runs."""

import time
from collections import deque
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from arpo.inference.engine import Response

_T = TypeVar("_T")


@dataclass(slots=True)
class Activity:
    """The doings of all episodes together. Only the event loop's thread writes; any thread may read a number."""

    env_calls: int = 0
    """Calls to environments that have not returned."""
    requests: int = 0
    """Requests to the engine that are not answered."""
    held: int = 0
    """Episodes that wait, in a desktop that is ready, for the engine's next policy version."""
    updates: int = 0
    """Updates of the engine's weights that have not ended."""
    last: float = field(default_factory=time.monotonic)
    """The moment at which something happened last: a call returned, an episode ended, weights were served."""

    def beat(self) -> None:
        """Note that something has happened."""
        self.last = time.monotonic()


@dataclass(slots=True)
class Meter:
    """Running counts of one job. Only the event loop's thread writes; any thread may read a number."""

    name: str = ""
    """`train` or the name of the evaluation; empty when nothing ran yet."""
    total: int = 0
    """Episodes asked for."""
    done: int = 0
    """Episodes that gave a trajectory, resumed ones among them."""
    resumed: int = 0
    """Episodes taken from the store instead of being run."""
    retried: int = 0
    """Attempts that the infrastructure lost and that were made again."""
    dropped: int = 0
    """Episodes given up after the last attempt."""
    successes: int = 0
    steps: int = 0
    tokens: int = 0
    """Sampled tokens, those of lost attempts among them."""
    generate_s: float = 0.0
    """Seconds of requests, summed over episodes that wait at the same time."""
    env_s: float = 0.0
    """Seconds of environment calls, summed over environments."""
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    """The last infrastructure failures."""
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """The end of the last episode; None while one runs."""
    activity: Activity = field(default_factory=Activity)
    """What goes on in all episodes together, those of other meters among them."""

    @property
    def elapsed_s(self) -> float:
        """Seconds from the beginning to the end of the last episode, or to now."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.started

    @property
    def episodes_ended(self) -> int:
        """Episodes that ended either way: with a trajectory or dropped."""
        return self.done + self.dropped

    @property
    def last_causes(self) -> str:
        """The last infrastructure failures, for a message."""
        return "; ".join(self.causes) or "none"

    async def of_env(self, call: Awaitable[_T]) -> _T:
        """Return what an environment call gives, and count its time."""
        started = time.perf_counter()
        self.activity.env_calls += 1
        try:
            return await call
        finally:
            self.activity.env_calls -= 1
            self.activity.beat()
            self.env_s += time.perf_counter() - started

    async def of_engine(self, call: Awaitable[Response]) -> Response:
        """Return the response that an engine call gives, and count its time, and it as a step."""
        started = time.perf_counter()
        self.activity.requests += 1
        try:
            response = await call
        finally:
            self.activity.requests -= 1
            self.activity.beat()
            self.generate_s += time.perf_counter() - started
        self.steps += 1
        self.tokens += len(response.token_ids)
        return response


def together(meters: Sequence[Meter]) -> Meter:
    """Return the sum of some meters, from the first begin to the last end; None has ended where one runs."""
    ends = [meter.ended for meter in meters]
    summed = ("total", "done", "resumed", "retried", "dropped", "successes", "steps", "tokens", "generate_s", "env_s")
    return Meter(
        meters[0].name if meters else "",
        **{name: sum(attrgetter(name)(meter) for meter in meters) for name in summed},
        causes=deque((cause for meter in meters for cause in meter.causes), maxlen=5),
        started=min((meter.started for meter in meters), default=time.monotonic()),
        ended=None if None in ends else max((end for end in ends if end is not None), default=None),
    )
