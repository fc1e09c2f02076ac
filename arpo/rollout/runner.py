"""Many episodes at once: retries, drops, and what ends on disk."""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from arpo.algorithms.rewards import is_success
from arpo.envs.pool.pool import EnvPool
from arpo.errors import EngineError, EnvError
from arpo.rollout.episode import Agent, EpisodeSpec, run_episode
from arpo.rollout.meter import Meter
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

log = logging.getLogger(__name__)


class EpisodeRunner:
    """Runs episodes on whatever environment is free; lives on the collector's event loop.

    An episode that the infrastructure loses is made again with the same seed, on another environment because the
    pool takes the failed one out, and is given up after `max_attempts`.
    """

    def __init__(
        self, pool: EnvPool, agent: Agent, store: TrajectoryStore, *, max_attempts: int, success_threshold: float
    ) -> None:
        self._pool = pool
        self._agent = agent
        self._store = store
        self._max_attempts = max_attempts
        self._success_threshold = success_threshold
        self._episodes: set[asyncio.Task[Trajectory | None]] = set()

    async def run(
        self, specs: Sequence[EpisodeSpec], meter: Meter, finished: Mapping[str, Trajectory]
    ) -> list[Trajectory | None]:
        """Return one trajectory a spec, in their order; None where an episode was given up.

        Episodes are begun in the order of the specs: a pool serves in the order in which it is asked.

        Args:
            specs: What to run.
            meter: Counts what happens.
            finished: Trajectories by id that need not be run again, as far as they are of these specs.
        """
        episodes = [asyncio.create_task(self._episode(spec, meter, finished.get(spec.id))) for spec in specs]
        self._episodes.update(episodes)
        try:
            return list(await asyncio.gather(*episodes))
        finally:
            await self._cancel(episodes)  # after an error or a cancellation others still run

    async def close(self) -> None:
        """Cancel every running episode and wait until it has given its environment back."""
        await self._cancel(tuple(self._episodes))

    async def _cancel(self, episodes: Sequence[asyncio.Task[Trajectory | None]]) -> None:
        for episode in episodes:
            episode.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
        self._episodes.difference_update(episodes)

    async def _episode(self, spec: EpisodeSpec, meter: Meter, finished: Trajectory | None) -> Trajectory | None:
        if finished is not None and (finished.task_id, finished.seed) == (spec.task.id, spec.seed):
            meter.resumed += 1
            trajectory = await asyncio.to_thread(self._store.load_screenshots, finished)
        else:
            played = await self._play(spec, meter)
            if played is None:
                return None
            trajectory = played
            await asyncio.to_thread(self._store.write, trajectory)
        meter.done += 1
        meter.successes += is_success(trajectory, threshold=self._success_threshold)
        return trajectory

    async def _play(self, spec: EpisodeSpec, meter: Meter) -> Trajectory | None:
        for attempt in range(1, self._max_attempts + 1):
            try:
                async with self._pool.lease(spec.task) as env:
                    return await run_episode(spec, env, self._agent, meter)
            except (EnvError, EngineError) as error:
                meter.lost(error)
                log.warning("episode %s, attempt %d of %d: %s", spec.id, attempt, self._max_attempts, error)
                meter.retried += attempt < self._max_attempts
        meter.dropped += 1
        return None
