"""One member of a fleet: a place for a replica, what it is asked, how it does, and why it is gone."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from arpo.errors import ArpoError, EngineError, EngineGoneError
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response
from arpo.inference.remote import Replica, Snapshot

PULSE_S = 2.0
"""Seconds between two looks at a replica, at most."""
START_TIMEOUT_S = 1800
"""Seconds in which a restarted engine must have loaded its checkpoint; the first start is as long as it is."""
STEPS = "engine/steps"
"""The counter that grows while an engine works; one without it stands still only when its process does."""


class ReplicaSupervisor:
    """A numbered place of a fleet and the replica in it; another one comes when that one is gone.

    Attributes:
        replica: The one that is there now.
        lock: Held while its weights change.
        holds: The number of the update whose weights it has; 0: those it started with.
        gone: Whether the replica is gone and no other one runs yet.
        given_up: Whether none will come.
        failures: Replicas in a row that were lost without an answer.
        counters: Sums over all replicas that were here, without the engine's own.
    """

    def __init__(self, number: int, make_replica: Callable[[], Replica]) -> None:
        self.number = number
        self.lock = asyncio.Lock()
        self.holds = 0
        self.gone = False
        self.given_up = False
        self.failures = 0
        self.counters: Counter[str] = Counter(requests=0, tokens=0, waiting_s=0, in_flight_s=0)
        self._make_replica = make_replica
        self.replica = make_replica()
        self._calls: set[asyncio.Task[Response]] = set()
        self._expected = 0
        self._figures: dict[str, float] = {}
        self._figures_before: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        """Number of requests that wait for the replica's answer."""
        return len(self._calls)

    async def ask(self, request: GenerateRequest, waited_s: float) -> Response | None:
        """Return the response; None if the request was called back before it was answered.

        Args:
            request: The question.
            waited_s: Seconds that it waited until a replica took requests.

        Raises:
            EngineGoneError: If the replica has died.
            EngineError: If it refused the request.
        """
        begun = time.monotonic()
        call = asyncio.create_task(self.replica.generate(request))
        self._calls.add(call)
        try:
            await asyncio.wait([call])
        finally:
            self._calls.discard(call)
            call.cancel()  # in the engine too, where our own caller has gone
            self._count(waiting_s=waited_s, in_flight_s=time.monotonic() - begun)
        if call.cancelled():
            return None
        response = call.result()
        self.failures = 0
        self._count(requests=1, tokens=len(response.token_ids))
        return response

    async def drain(self, deadline_s: float) -> None:
        """Wait until every request is answered, and past the deadline call back those that are not."""
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=deadline_s)
        self.call_back()

    def call_back(self) -> None:
        """Take back what is not answered yet: `ask` returns None."""
        for call in self._calls:
            call.cancel()

    async def load(self, snapshot: Snapshot) -> None:
        """Let the replica adopt weights.

        Raises:
            WeightSyncError: If they are not the model's, or it holds other ones afterwards.
            EngineGoneError: If it has died.
        """
        self._expected += 1  # of the watch: steps
        try:
            await self.replica.load(snapshot)
        finally:
            self._expected -= 1

    def kill(self) -> None:
        """End the replica that is there now."""
        self.replica.kill()

    def lose(self) -> None:
        """End the replica, and call back what it was asked."""
        self.gone = True
        self.failures += 1
        self.call_back()
        self.kill()
        self._figures_before.update(self._figures)
        self._figures = {}

    async def restart(self, make_engine: Callable[[], InferenceEngine]) -> str:
        """Start a replica in the place of the one that is gone, and return why it is gone too, or nothing."""
        self.replica = self._make_replica()
        self.holds = 0
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self.replica.start(make_engine)
        except (ArpoError, TimeoutError) as error:
            self.lose()
            return f"it did not start: {error or f'not within {START_TIMEOUT_S} s'}"
        self.gone = False
        return ""

    async def close(self) -> None:
        """Close the engine, if it lives; whoever hears of its end has nothing to start again."""
        if not self.gone:
            self.gone = True
            with suppress(EngineGoneError):  # it has died, and nothing is left to close
                await self.replica.close()

    async def watch(self, stall_s: float) -> str:
        """Return why the replica is gone, as soon as it is.

        It is gone when its process has died or does not answer, or when its engine takes no step though it is asked.

        Args:
            stall_s: Seconds without an answer or a step.
        """
        replica, steps, moved = self.replica, -1.0, time.monotonic()
        while True:
            try:
                async with asyncio.timeout(stall_s):
                    figures = await replica.pulse()
            except TimeoutError:
                return f"its process has not answered for {stall_s:g} s"
            except EngineError as error:
                return str(error)
            if self.gone or self.replica is not replica:
                return "it was lost already"
            self._figures = figures
            now = time.monotonic()
            taken = figures.get(STEPS, now)
            if taken != steps or not (self._calls or self._expected):
                steps, moved = taken, now
            elif now - moved >= stall_s:
                return f"its engine has not taken a step for {stall_s:g} s, though it has work"
            await asyncio.sleep(min(PULSE_S, stall_s / 4))

    def figures(self) -> dict[str, float]:
        """Return all counters under the replica's number."""
        place = f"engine/replica_{self.number}"
        found = Counter({f"{place}/{name}": value for name, value in dict(self.counters).items()})
        for figures in (dict(self._figures_before), self._figures):  # a copy: another thread may be here
            found.update({name.replace("engine", place, 1): value for name, value in figures.items()})
        return dict(found)

    def _count(self, **values: float) -> None:
        for name, value in values.items():
            self.counters[name] += value  # type: ignore[assignment]  # a Counter adds floats too
