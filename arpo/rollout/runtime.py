"""The runtime of rollouts: an event loop, and the engine and the environments that live on it."""

import concurrent.futures
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from arpo.agent.prompt import Prompt
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ArpoError, RolloutError
from arpo.host.log_lines import log_every
from arpo.host.threads import BackgroundLoop, Signal
from arpo.inference.engine import InferenceEngine
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.episode import Meter, Responder
from arpo.rollout.runner import EpisodeRunner, SpecRows
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

_T = TypeVar("_T")

LOOKS_A_STALL = 10
"""How often the signs of life are looked at within `stall_s`."""
LONGEST_LOOK_S = 1.0
ENDED = "the event loop of the rollouts has ended"


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The policy versions that an engine serves after an update; two, where a fleet takes it one by one."""

    oldest: int = 0
    newest: int = 0


class RolloutRuntime:
    """The engine, the environments and their event loop: plays episodes while a trainer goes its own way.

    Every method is called from one thread, the trainer's, except `status`, which any thread may call. A method that
    blocks can be interrupted by Ctrl-C; the episodes go on until `close`.

    Attributes:
        served: The versions of the policy that the engine serves.
        changed: Notified on the event loop whenever the engine serves another version.
    """

    def __init__(
        self,
        make_engine: Callable[[], InferenceEngine],
        pool: EnvPool,
        chat: ChatTokenizer,
        prompt: Prompt,
        store: TrajectoryStore,
        settings: RolloutSettings,
    ) -> None:
        """Take the parts; nothing is started before `start`.

        Args:
            make_engine: Called once, by `start`, in the caller's thread; returns when the engine can serve.
            pool: Not started.
            chat: The tokenizer of the engine's checkpoint.
            prompt: How a task is put to the policy.
            store: Gets every trajectory as its episode ends.
            settings: The numbers.
        """
        self.pool = pool
        self.chat = chat
        self.prompt = prompt
        self.store = store
        self.settings = settings
        self.served = ServedVersions()
        self.changed = Signal()
        self._make_engine = make_engine
        self._engine: InferenceEngine | None = None
        self._runner: EpisodeRunner | None = None
        self._loop = BackgroundLoop("rollout")
        self._meter: Callable[[], Meter] = Meter
        self._newest_version = 0
        """Of what the engine was given, an update that has not ended included."""

    def start(self) -> None:
        """Start engine and environments side by side; blocks until both are ready. Idempotent."""
        if self._loop.running:
            return
        self._loop.start()
        self.served, self.changed = ServedVersions(), Signal()
        self._newest_version = 0
        pool = self._loop.submit(self.pool.start())
        try:
            with log_every("starting the engine and the environments"):
                self._engine = self._make_engine()
                pool.result()
        except BaseException:  # a Ctrl-C too must leave no process behind
            pool.cancel()
            self.close()
            raise
        responder = Responder(self._engine, self.chat, self.prompt, lambda: self._newest_version)
        self._runner = EpisodeRunner(self.pool, responder, self.store, self.settings)

    @property
    def runner(self) -> EpisodeRunner:
        """The runner of episodes; its coroutines go through `run`."""
        if self._runner is None:
            raise ArpoError("the rollout runtime does not run: call start() first, and nothing after close()")
        return self._runner

    def play(
        self, name: str, specs: SpecRows, finished: Mapping[str, Trajectory]
    ) -> tuple[list[list[Trajectory | None]], Meter]:
        """Play episodes beside those that are learned from; block, and return their rows and counts.

        They ask only replicas that serve the last update, so that they are of one policy. They should be played right
        after an update, because before one training holds environments for the policy that comes. They share the
        environments with training fairly: each gets every second one that becomes free.

        Args:
            name: The name of the evaluation.
            specs: The episodes, in rows; a trajectory is None where its episode was lost.
            finished: Trajectories by id; one that a spec would give again is taken instead of being played.
        """
        meter = Meter(name, total=sum(len(row) for row in specs), activity=self.runner.activity)
        version = self.served.newest

        async def may_ask() -> int:  # a replica that still has the policy before is not the one to be judged
            return version

        self.show(lambda: meter)
        rows = self.watch(
            self._loop.submit(self.runner.run(specs, meter, finished, may_ask=may_ask)),
            lambda: f"the trainer waits for {name}; {meter.episodes_ended} of {meter.total} episodes have ended",
        )
        return rows, meter

    def watch(self, future: "concurrent.futures.Future[_T]", waiter: Callable[[], str]) -> _T:
        """Return the result of a future on the loop; block, and detect a stall.

        Args:
            future: The one to wait for.
            waiter: Returns the beginning of the message of a stall: what waits, and for what.
        """
        # Held here: another thread may close the runtime meanwhile.
        runner, stall_s, began = self.runner, self.settings.stall_s, time.monotonic()
        look_s = min(stall_s / LOOKS_A_STALL, LONGEST_LOOK_S)
        stalled = ""
        while not stalled and not concurrent.futures.wait([future], timeout=look_s).done:
            if not self._loop.running:
                stalled = ENDED
            elif time.monotonic() - max(began, runner.activity.last) > stall_s:
                stalled = self._stalled_part(runner)
        if stalled or future.cancelled():  # the end of a loop cancels what runs on it
            raise RolloutError(self._stall_message(runner, waiter(), stalled or ENDED))
        return future.result()

    def _stalled_part(self, runner: EpisodeRunner) -> str:
        activity, queued = runner.activity, sum(runner.turns.queued().values())
        if not self._loop.answers():
            return "the event loop of the rollouts does not answer, because something blocks its thread"
        causes = {
            "the engine has not taken the new weights": activity.updates,
            f"{activity.requests} engine requests are pending": activity.requests,
            f"{activity.env_calls} calls to environments do not return": activity.env_calls,
            f"{activity.held} episodes wait until the engine serves the next policy version": activity.held,
            f"{queued} episodes wait for an environment, and none becomes free": queued or self.pool.states()["busy"],
        }
        found = (cause for cause, is_there in causes.items() if is_there)
        return next(found, "no episode runs, and the collector begins none")

    def _stall_message(self, runner: EpisodeRunner, waiter: str, stalled: str) -> str:
        states = {state: count for state, count in self.pool.states().items() if count}
        activity = runner.activity
        return (
            f"{waiter}, and nothing has happened for {time.monotonic() - activity.last:.0f} s "
            f"(stall_s={self.settings.stall_s:g}): {stalled}. Environments: {states}, {activity.env_calls} calls in "
            f"flight; engine: {activity.requests} requests in flight; episodes queued: {runner.turns.queued()}; "
            f"held for the next policy version: {activity.held}. See in the log what failed last; resume=auto goes on "
            "from the last checkpoint, and a larger stall_s waits longer"
        )

    def show(self, meter: Callable[[], Meter]) -> None:
        """Let `status` ask `meter` from now on."""
        self._meter = meter

    def update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send the engine new weights; blocks until it serves them, or in a fleet until a replica does.

        Raises:
            WeightSyncError: If the engine does not take them.
        """
        self.watch(
            self._loop.submit(self._update_weights(tensors, version)),
            lambda: f"the trainer waits until the engine serves policy version {version}",
        )

    async def _update_weights(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        activity = self.runner.activity
        activity.updates += 1
        self._newest_version = max(self._newest_version, version)
        try:
            await self.engine.update_weights(tensors, version)
        finally:
            activity.updates -= 1
        self.served = ServedVersions(self.engine.oldest_version, version)
        activity.beat()
        self.changed.notify()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        """Begin a coroutine on the loop of engine and environments, and return the future of its result."""
        return self._loop.submit(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the loop of engine and environments, and return its result; block."""
        return self.watch(self._loop.submit(coroutine), lambda: "the trainer waits for the event loop of the rollouts")

    @property
    def engine(self) -> InferenceEngine:
        """The engine; its coroutines go through `run`."""
        if self._engine is None:
            raise ArpoError("the rollout runtime has no engine: call start() first, and nothing after close()")
        return self._engine

    def counters(self) -> dict[str, float]:
        """Return the cumulative counters of environments and engine."""

        async def counters() -> dict[str, float]:  # of one moment of the loop
            return self.pool.counters() | self.engine.counters()

        return self.run(counters())

    def status(self) -> Meter:
        """Return a copy of the running counts; cheap, and allowed from any thread."""
        return replace(self._meter())

    def answers(self) -> bool:
        """Return whether the event loop runs and is not blocked."""
        return self._loop.answers()

    def close(self) -> None:
        """Cancel running episodes, stop environments and engine. Idempotent, and `start` may follow."""
        try:
            if self._engine is not None and not self._loop.running:  # it has died: another one ends what lived on it
                self._loop.close()
                self._loop.start()
            if self.answers():
                self._loop.run(self._close())
        finally:
            self._loop.close()
        self._engine = self._runner = None  # also where the loop is blocked
        self._meter = Meter

    async def _close(self) -> None:
        engine, runner = self._engine, self._runner
        self._engine = self._runner = None
        async with AsyncExitStack() as stack:  # each part is closed even where closing another one fails
            if engine is not None:
                stack.push_async_callback(engine.close)
            stack.push_async_callback(self.pool.close)
            if runner is not None:
                stack.push_async_callback(runner.close)
