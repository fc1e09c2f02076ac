"""Costs and progress of a rollout, counted while it runs."""

import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

from arpo.inference.engine import Response

_T = TypeVar("_T")


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
        try:
            return await call
        finally:
            self.env_s += time.perf_counter() - started

    async def of_engine(self, call: Awaitable[Response]) -> Response:
        """Return the response that an engine call gives, and count its time, and it as a step."""
        started = time.perf_counter()
        try:
            response = await call
        finally:
            self.generate_s += time.perf_counter() - started
        self.steps += 1
        self.tokens += len(response.token_ids)
        return response
