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
from arpo.host.heartbeat import still
from arpo.host.threads import BackgroundLoop, Signal
from arpo.inference.engine import InferenceEngine
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.episode import Responder
from arpo.rollout.groups import Served
from arpo.rollout.meter import Meter
from arpo.rollout.runner import EpisodeRunner, SpecRows
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

_T = TypeVar("_T")

LOOKS_A_STALL = 10
"""How often the signs of life are looked at within `stall_s`."""
LONGEST_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """Episodes that were begun together: what is counted of them, and what will come of them, in rows."""

    meter: Meter
    future: concurrent.futures.Future[list[list[Trajectory | None]]]


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
        self.served = Served()
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
        self.served, self.changed = Served(), Signal()  # those of an engine and a loop before are none of this one's
        self._newest_version = 0
        pool = self._loop.submit(self.pool.start())
        try:
            with still("starting the engine and the environments"):
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

    def begin(self, name: str, specs: SpecRows, finished: Mapping[str, Trajectory]) -> Job:
        """Begin episodes beside those that are learned from, and return at once.

        They ask only replicas that serve the last update, so that they are of one policy as long as they end before
        the next one begins. Whoever waits for them should do so right after an update, because before one training
        holds environments for the policy that comes. They share the environments with training fairly: each gets
        every second one that becomes free.

        Args:
            name: The name of the evaluation.
            specs: What to play, in rows.
            finished: Trajectories by id; one that a spec would give again is taken instead of being played.
        """
        meter = Meter(name, total=sum(len(row) for row in specs), activity=self.runner.activity)
        version = self.served.newest

        async def may_ask() -> int:  # a replica that still has the policy before is not the one to be judged
            return version

        self.show(lambda: meter)
        return Job(meter, self._loop.submit(self.runner.run(specs, meter, finished, may_ask=may_ask)))

    def wait(self, job: Job) -> list[list[Trajectory | None]]:
        """Return what came of each spec of a job, None where the episode was lost; blocks until all have ended."""
        meter = job.meter
        self.show(lambda: meter)  # of the one that is waited for, though a later one may have begun
        return self.watch(
            job.future,
            lambda: f"the trainer waits for {meter.name}; {meter.episodes_ended} of {meter.total} episodes have ended",
        )

    def watch(self, future: "concurrent.futures.Future[_T]", who: Callable[[], str]) -> _T:
        """Return what a future on the loop gives; blocks, and detects a stall.

        Args:
            future: What is waited for.
            who: Says who waits, and for what.
        """
        # Held here: another thread may close the runtime meanwhile.
        runner, stall_s, began = self.runner, self.settings.stall_s, time.monotonic()
        look_s = min(stall_s / LOOKS_A_STALL, LONGEST_LOOK_S)
        while not concurrent.futures.wait([future], timeout=look_s).done:
            if not self._loop.running:
                raise RolloutError(self._said(runner, who(), "the event loop of the rollouts has ended"))
            if time.monotonic() - max(began, runner.activity.last) > stall_s:
                raise RolloutError(self._said(runner, who(), self._culprit(runner)))
        if future.cancelled():  # the end of a loop cancels what runs on it
            raise RolloutError(self._said(runner, who(), "the event loop of the rollouts has ended"))
        return future.result()

    def _culprit(self, runner: EpisodeRunner) -> str:
        activity, queued = runner.activity, sum(runner.turns.queued().values())
        if not self._loop.answers():
            return "the event loop of the rollouts does not answer, because something blocks its thread"
        causes = {
            "the engine has not taken the new weights": activity.updates,
            f"the engine owes {activity.requests} answers": activity.requests,
            f"{activity.env_calls} calls to environments do not return": activity.env_calls,
            f"{activity.held} episodes wait until the engine serves the next policy version": activity.held,
            f"{queued} episodes wait for an environment, and none becomes free": queued or self.pool.states()["busy"],
        }
        found = (cause for cause, is_there in causes.items() if is_there)
        return next(found, "no episode runs, and the collector begins none")

    def _said(self, runner: EpisodeRunner, who: str, culprit: str) -> str:
        states = {state: count for state, count in self.pool.states().items() if count}
        activity = runner.activity
        return (
            f"{who}, and nothing has happened for {time.monotonic() - activity.last:.0f} s "
            f"(stall_s={self.settings.stall_s:g}): {culprit}. Environments: {states}, {activity.env_calls} calls in "
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
        self.served = Served(self.engine.oldest_version, version)
        activity.beat()
        self.changed.notify()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        """Begin a coroutine on the loop of engine and environments, and return the future of its result."""
        return self._loop.submit(coroutine)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Return what a coroutine returns on the loop of engine and environments; blocks."""
        return self.watch(self._loop.submit(coroutine), lambda: "the trainer waits for the event loop of the rollouts")

    @property
    def engine(self) -> InferenceEngine:
        """The engine; its coroutines go through `run`."""
        if self._engine is None:
            raise ArpoError("the rollout runtime has no engine: call start() first, and nothing after close()")
        return self._engine

    def counters(self) -> dict[str, float]:
        """Return the cumulative counters of environments and engine."""
        return self.run(self._counters())

    async def _counters(self) -> dict[str, float]:
        return self.pool.counters() | self.engine.counters()

    def status(self) -> Meter:
        """Return where the rollout stands, as a copy; cheap, and allowed from any thread."""
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
