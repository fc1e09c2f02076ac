"""The runtime of rollouts: an event loop, the engine and environments on it, and the episodes that they play."""

import asyncio
import concurrent.futures
import hashlib
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from torch import Tensor

from arpo.agent.prompt import Prompt
from arpo.algorithms.rewards import is_success
from arpo.endpoint.remote import RemotePolicy
from arpo.endpoint.server import Endpoint
from arpo.envs.mixture import Pool
from arpo.errors import ArpoError, EngineError, EnvError, HarnessError, RolloutError
from arpo.host.log_lines import log_every
from arpo.host.threads import BackgroundLoop, Signal
from arpo.inference.engine import InferenceEngine
from arpo.models.tokenization import ChatTokenizer, check_exchanges
from arpo.rollout.episode import Activity, EpisodeSpec, MayAsk, Meter, Responder, at_once, run_episode
from arpo.rollout.harness import Harness, HarnessPlayer
from arpo.rollout.settings import MAX_ACTIONS, RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

log = logging.getLogger(__name__)

_T = TypeVar("_T")

ENDED = "the event loop of the rollouts has ended"
SpecRows = tuple[tuple[EpisodeSpec, ...], ...]
"""One row a group, one spec a member."""

BLOCK = 4096
PLACES = 256
"""Places at which `BLOCK` bytes of a file are read, so that 15 GB of weights take no longer than a tokenizer."""
TRAINING = "train"
"""The name of the episodes that are learned from, in meters and in the queue for environments."""


class FairQueue:
    """A number of turns for which lanes queue: first come, first served in a lane, and lane after lane between them.

    So an evaluation that asks for a thousand episodes at once gets every second environment that becomes free, and
    training the others. An episode keeps its turn when the infrastructure loses it and it is made again.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._lanes: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, lane: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it."""
        if self._free:
            self._free -= 1
        else:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._lanes.setdefault(lane, deque()).append(future)
            try:
                await future
            except asyncio.CancelledError:
                if not future.cancelled():  # it had its turn already
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def queued(self) -> dict[str, int]:
        """Return the number of waiting episodes by lane; allowed from any thread."""
        return {lane: sum(not future.done() for future in list(queue)) for lane, queue in list(self._lanes.items())}

    def _pass_on(self) -> None:
        while self._lanes:
            lane, queue = next(iter(self._lanes.items()))
            self._lanes.move_to_end(lane)
            future = queue.popleft()
            if not queue:
                del self._lanes[lane]
            if not future.done():  # else it was cancelled
                future.set_result(None)
                return
        self._free += 1


class EpisodeRunner:
    """A runner of episodes on whatever environment is free; lives on the runtime's event loop.

    An episode that the infrastructure loses is made again with the same seed, on another environment because the
    pool takes the failed one out, and is given up after `max_attempts`. Episodes queue for environments in `turns`, in
    a lane for training and one for each evaluation.
    """

    def __init__(
        self,
        pool: Pool,
        responder: Responder,
        store: TrajectoryStore,
        settings: RolloutSettings,
        player: HarnessPlayer | None = None,
    ) -> None:
        self.turns = FairQueue(pool.size)
        self.activity = Activity()
        self._pool = pool
        self._responder = responder
        self._store = store
        self._settings = settings
        self._run_episode = player or run_episode
        self._harness = None if player is None else player.harness
        self._model = model_fingerprint(responder.chat.path)
        self._episodes = WeakSet[asyncio.Task[Trajectory | None]]()

    async def run(
        self, specs: SpecRows, meter: Meter, finished: Mapping[str, Trajectory], *, may_ask: MayAsk = at_once
    ) -> list[list[Trajectory | None]]:
        """Return one trajectory a spec, in their rows; None where an episode was given up.

        Args:
            specs: Begun in this order: a pool serves in the order in which it is asked.
            meter: Its name is the lane in which the episodes queue.
            finished: Stored trajectories by id, of which those with the task, the seed and the sampling settings of
                their spec need not be run again.
            may_ask: Waited for by each episode between the desktop and its first response.
        """
        flat = [spec for row in specs for spec in row]
        others = sum(spec.id in finished and not self._stands_for(spec, finished[spec.id]) for spec in flat)
        if others:
            log.warning(
                "%d of %d stored episodes were sampled with other settings (seed, limits, temperature, protocol, "
                "prompt or model), or by a version that did not store them: they are played again",
                others,
                len(finished),
            )
        episodes = [asyncio.create_task(self._episode(spec, meter, finished.get(spec.id), may_ask)) for spec in flat]
        self._episodes.update(episodes)
        try:
            ended = iter(await asyncio.gather(*episodes))
        finally:
            await self._cancel(episodes)  # after an error or a cancellation others still run
            meter.ended = time.monotonic()
        return [[next(ended) for _ in row] for row in specs]

    async def close(self) -> None:
        """Cancel every running episode and wait until it has given its environment back."""
        await self._cancel([episode for episode in self._episodes if not episode.done()])

    async def _cancel(self, episodes: Sequence[asyncio.Task[Trajectory | None]]) -> None:
        for episode in episodes:
            episode.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)

    async def _episode(
        self, spec: EpisodeSpec, meter: Meter, finished: Trajectory | None, may_ask: MayAsk
    ) -> Trajectory | None:
        if finished is not None and self._stands_for(spec, finished):
            meter.resumed += 1
            trajectory = await asyncio.to_thread(self._store.load_screenshots, finished)
        else:
            async with self.turns.turn(meter.name):
                played = await self._play(spec, meter, may_ask)
            if played is None:
                return None
            check_exchanges(played, self._responder.chat)
            trajectory = replace(played, sampling=self._sampling(spec))
            await asyncio.to_thread(self._store.write, trajectory)
        meter.done += 1
        meter.successes += is_success(trajectory, threshold=self._settings.success_threshold)
        return trajectory

    def _sampling(self, spec: EpisodeSpec) -> str:
        return sampling_fingerprint(spec, self._responder.prompt, self._model, self._harness)

    def _stands_for(self, spec: EpisodeSpec, stored: Trajectory) -> bool:
        wanted = (spec.task.id, spec.seed, self._sampling(spec))
        return (stored.task_id, stored.seed, stored.sampling) == wanted

    async def _play(self, spec: EpisodeSpec, meter: Meter, may_ask: MayAsk) -> Trajectory | None:
        most = self._settings.max_attempts
        for attempt in range(1, most + 1):
            try:
                async with self._pool.lease(spec.task) as env:
                    return await self._run_episode(spec, env, self._responder, meter, may_ask)
            except (EnvError, EngineError, HarnessError) as error:
                meter.causes.append(f"{type(error).__name__}: {error}")
                log.warning("episode %s of task %s, attempt %d of %d: %s", spec.id, spec.task.id, attempt, most, error)
                meter.retried += attempt < most
        meter.dropped += 1
        return None


def sampling_fingerprint(spec: EpisodeSpec, prompt: Prompt, model: str, harness: Harness | None = None) -> str:
    """Return a digest of everything but task, seed and weights that decides how an episode is sampled.

    `model` is the `model_fingerprint` of the checkpoint that the policy started from.
    """
    settings, sampling, template = spec.settings, spec.sampling, asdict(prompt)
    del template["functions"]  # which the template names
    if prompt.grammar == "ui_tars":  # records from before there was another one stay good
        del template["grammar"]
    how = {
        "max_steps": spec.max_steps,
        "max_context": settings.max_context,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "protocol": spec.protocol,
        "prompt": template,
        "model": model,
    }
    if settings.image_window is not None:  # without one, records from before there were windows stay good
        how["image_window"] = settings.image_window
    if settings.max_actions != MAX_ACTIONS:  # likewise from before there was a bound
        how["max_actions"] = settings.max_actions
    if harness is not None:
        how |= harness.settings()
    return hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:16]


def model_fingerprint(path: str | Path) -> str:
    """Return a digest of a checkpoint directory by its content, wherever it lies; a hub name stands for itself.

    Of every file it takes the name, the size and blocks at regular distances. Training changes nearly every weight,
    so it distinguishes two policies, though not two files that differ in one byte.
    """
    directory = Path(path)
    if not directory.is_dir():
        return str(path)
    digest = hashlib.sha256()
    for file in sorted(entry for entry in directory.iterdir() if entry.is_file()):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for place in range(0, size, max(BLOCK, size // PLACES)):
                opened.seek(place)
                digest.update(opened.read(BLOCK))
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ServedVersions:
    """The policy versions that an engine serves after an update; two, where a fleet takes it one by one."""

    oldest: int = 0
    newest: int = 0


@dataclass(eq=False, repr=False)
class RolloutRuntime:
    """The engine, the environments and their event loop: plays episodes while a trainer goes its own way.

    Nothing is started before `start`. Every method is called from one thread, the trainer's, except `status`, which
    any thread may call. A method that blocks can be interrupted by Ctrl-C; the episodes go on until `close`.
    """

    make_engine: Callable[[], InferenceEngine]
    """Called once, by `start`, in the caller's thread; returns when the engine can serve."""
    pool: Pool
    chat: ChatTokenizer
    prompt: Prompt
    store: TrajectoryStore
    settings: RolloutSettings
    harness: Harness | None = None
    """The agent; None: our own loop."""
    remote: RemotePolicy | None = field(init=False, default=None)
    """The model that it asks in the place of the engine's, where one is evaluated that others serve."""
    served: ServedVersions = field(init=False, default_factory=ServedVersions)
    """The versions of the policy that the engine serves."""
    changed: Signal = field(init=False, default_factory=Signal)
    """Notified on the event loop whenever the engine serves another version."""
    _engine: InferenceEngine | None = field(init=False, default=None)
    _runner: EpisodeRunner | None = field(init=False, default=None)
    _endpoint: Endpoint | None = field(init=False, default=None)
    _loop: BackgroundLoop = field(init=False, default_factory=lambda: BackgroundLoop("rollout"))
    _meter: Callable[[], Meter] = field(init=False, default=Meter)
    _newest_version: int = field(init=False, default=0)
    """Of what the engine was given, an update that has not ended included."""

    def __post_init__(self) -> None:
        self.store.blind = self.chat.without_screenshot

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
                self._engine = self.make_engine()
                pool.result()
        except BaseException:  # a Ctrl-C too must leave no process behind
            pool.cancel()
            self.close()
            raise
        responder = Responder(self._engine, self.chat, self.prompt, lambda: self._newest_version)
        player = None
        if self.harness is not None:
            self._endpoint = Endpoint(remote=self.remote)
            self._loop.run(self._endpoint.start())
            player = HarnessPlayer(self.harness, self._endpoint, responder)
        self._runner = EpisodeRunner(self.pool, responder, self.store, self.settings, player)

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
        environments with training fairly: each gets every second one that becomes free. See `EpisodeRunner.run`.
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

        `waiter` returns the beginning of the message of a stall: what waits, and for what.
        """
        # Held here: another thread may close the runtime meanwhile.
        runner, stall_s, began = self.runner, self.settings.stall_s, time.monotonic()
        look_s = min(stall_s / 10, 1.0)
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
        """Send the engine new weights; blocks until it serves them, or in a fleet until a replica does."""
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
            of_agents = {} if self._endpoint is None else self._endpoint.counters()
            return self.pool.counters() | self.engine.counters() | of_agents

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
        self._engine = self._runner = self._endpoint = None  # also where the loop is blocked
        self._meter = Meter

    async def _close(self) -> None:
        engine, runner, endpoint = self._engine, self._runner, self._endpoint
        self._engine = self._runner = self._endpoint = (
            None  # a second call, as after an interrupt, finds nothing to close
        )
        async with AsyncExitStack() as stack:  # each part is closed even where closing another one fails
            if engine is not None:
                stack.push_async_callback(engine.close)
            stack.push_async_callback(self.pool.close)
            if endpoint is not None:
                stack.push_async_callback(endpoint.close)
            if runner is not None:
                stack.push_async_callback(runner.close)
