"""Many episodes at once: turns, retries, drops, what ends on disk, and what need not be played again."""

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from weakref import WeakSet

from arpo.agent.prompt import Prompt
from arpo.algorithms.rewards import is_success
from arpo.envs.pool.pool import EnvPool
from arpo.errors import EngineError, EnvError
from arpo.rollout.episode import Activity, EpisodeSpec, MayAsk, Meter, Responder, at_once, run_episode
from arpo.rollout.settings import MAX_ACTIONS, RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

log = logging.getLogger(__name__)

SpecRows = tuple[tuple[EpisodeSpec, ...], ...]
"""One row a group, one spec a member."""

BLOCK = 4096
"""Bytes that are read at one place of a file."""
PLACES = 256
"""Places at which a file is read, so that 15 GB of weights take no longer than a tokenizer."""
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
        await self._take(lane)
        try:
            yield
        finally:
            self._pass_on()

    def queued(self) -> dict[str, int]:
        """Return the number of waiting episodes by lane; allowed from any thread."""
        return {lane: sum(not future.done() for future in list(queue)) for lane, queue in list(self._lanes.items())}

    async def _take(self, lane: str) -> None:
        if self._free:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lanes.setdefault(lane, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():  # it had its turn already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        for future in self._in_fair_order():
            if not future.done():  # else it was cancelled
                future.set_result(None)
                return
        self._free += 1

    def _in_fair_order(self) -> Iterator[asyncio.Future[None]]:
        while self._lanes:
            lane, queue = next(iter(self._lanes.items()))
            self._lanes.move_to_end(lane)
            future = queue.popleft()
            if not queue:
                del self._lanes[lane]
            yield future


class EpisodeRunner:
    """A runner of episodes on whatever environment is free; lives on the runtime's event loop.

    An episode that the infrastructure loses is made again with the same seed, on another environment because the
    pool takes the failed one out, and is given up after `max_attempts`.

    Attributes:
        turns: The queue for environments, a lane for training and one for each evaluation.
        activity: What goes on in all episodes together.
    """

    def __init__(self, pool: EnvPool, responder: Responder, store: TrajectoryStore, settings: RolloutSettings) -> None:
        self.turns = FairQueue(pool.size)
        self.activity = Activity()
        self._pool = pool
        self._responder = responder
        self._store = store
        self._settings = settings
        self._model = model_fingerprint(responder.chat.path)
        self._episodes = WeakSet[asyncio.Task[Trajectory | None]]()

    async def run(
        self,
        specs: SpecRows,
        meter: Meter,
        finished: Mapping[str, Trajectory],
        *,
        may_ask: MayAsk = at_once,
    ) -> list[list[Trajectory | None]]:
        """Return one trajectory a spec, in their rows; None where an episode was given up.

        Episodes are begun in the order of the specs: a pool serves in the order in which it is asked.

        Args:
            specs: What to run.
            meter: Counts what happens; its name says for which turns the episodes queue.
            finished: Stored trajectories by id. One that has the task, the seed and the sampling settings of its spec
                need not be run again; any other one is, and so is one from before settings were stored.
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
            trajectory = replace(played, sampling=self._sampling(spec))
            await asyncio.to_thread(self._store.write, trajectory)
        meter.done += 1
        meter.successes += is_success(trajectory, threshold=self._settings.success_threshold)
        return trajectory

    def _sampling(self, spec: EpisodeSpec) -> str:
        return sampling_fingerprint(spec, self._responder.prompt, self._model)

    def _stands_for(self, spec: EpisodeSpec, stored: Trajectory) -> bool:
        wanted = (spec.task.id, spec.seed, self._sampling(spec))
        return (stored.task_id, stored.seed, stored.sampling) == wanted

    async def _play(self, spec: EpisodeSpec, meter: Meter, may_ask: MayAsk) -> Trajectory | None:
        most = self._settings.max_attempts
        for attempt in range(1, most + 1):
            try:
                async with self._pool.lease(spec.task) as env:
                    return await run_episode(spec, env, self._responder, meter, may_ask)
            except (EnvError, EngineError) as error:
                meter.causes.append(f"{type(error).__name__}: {error}")
                log.warning("episode %s of task %s, attempt %d of %d: %s", spec.id, spec.task.id, attempt, most, error)
                meter.retried += attempt < most
        meter.dropped += 1
        return None


def sampling_fingerprint(spec: EpisodeSpec, prompt: Prompt, model: str) -> str:
    """Return a digest of everything but task, seed and weights that decides how an episode is sampled.

    Args:
        spec: Its limits, temperature, protocol and window count; its id, task and seed stand in the record themselves.
        prompt: How the task is put to the policy.
        model: What `model_fingerprint` says about the checkpoint that the policy started from.
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
