"""Mixtures: parts that have environments and tasks of their own, and learn in one run."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from arpo.bounds import AtLeastOne, checked
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ArpoError, ConfigError, EnvError
from arpo.types import Task

log = logging.getLogger(__name__)


def part_of(task_id: str) -> str:
    """Return the part that a mixture's task belongs to: the beginning of its id."""
    return task_id.partition("/")[0]


@checked
def mixed_tasks(parts: Mapping[str, Sequence[Task]], max_steps: Mapping[str, AtLeastOne] | None = None) -> list[Task]:
    """Return the tasks of all parts, each with the name of its part before its id and its domain.

    Args:
        parts: Tasks by the names of their parts.
        max_steps: Step limits by part, for tasks that have none of their own; other parts have the run's.
    """
    limits = max_steps or {}
    if unknown := [part for part in limits if part not in parts]:
        raise ConfigError(f"max_steps has {', '.join(unknown)}, and the parts are {', '.join(parts)}")
    if unfit := [part for part in parts if not part or "/" in part]:
        raise ConfigError(f"the name of a part is a word without a slash, got {unfit[0]!r}")
    return [
        replace(
            task, id=f"{part}/{task.id}", domain=f"{part}/{task.domain}", max_steps=task.max_steps or limits.get(part)
        )
        for part, tasks in parts.items()
        for task in tasks
    ]


@checked
class MixedPool:
    """A pool of several kinds of environments: each part is a pool with a size, deadlines and workers of its own.

    At the start every part must come up. A part that loses all of its environments later stops no other one: its
    episodes fail as those of a broken environment do, and the next one that asks lets it be closed and started again
    in the background. Where no part has an environment left, the run ends.

    Args:
        parts: Pools by the names of their parts; not started.
        size: Episodes at once, of all parts together. One that waits for an environment of its part counts, so that
            more than there are environments keeps other parts busy meanwhile.
    """

    def __init__(self, parts: Mapping[str, EnvPool], size: AtLeastOne) -> None:
        if not parts:
            raise ConfigError("a mixture needs one part at least")
        if size < (number := sum(pool.size for pool in parts.values())):
            log.warning("size=%d episodes at once leave some of the %d environments of the parts idle", size, number)
        self.parts = parts
        self.size = size
        self._running = False
        self._restarts: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Start all parts side by side."""
        self._running = True
        outcomes = await asyncio.gather(*(pool.start() for pool in self.parts.values()), return_exceptions=True)
        for part, outcome in zip(self.parts, outcomes, strict=True):
            if outcome is not None:
                log.error("part %s does not come up: %s", part, outcome)
                await self.close()
                raise outcome

    async def close(self) -> None:
        """Close all parts; idempotent, and `start` may follow."""
        self._running = False
        restarts = list(self._restarts.values())
        for restart in restarts:
            restart.cancel()
        await asyncio.gather(*restarts, return_exceptions=True)
        await asyncio.gather(*(pool.close() for pool in self.parts.values()))

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[LeasedEnv]:
        """Wait for a free environment of the task's part and hold it for one episode."""
        part = part_of(task.id)
        if part not in self.parts:
            raise ConfigError(
                f"task {task.id!r} is of no part of this mixture, which has {', '.join(self.parts)}: take its tasks "
                "from mixed_tasks, with the same names of parts"
            )
        async with AsyncExitStack() as stack:
            try:
                env = await stack.enter_async_context(self.parts[part].lease(task))
            except ConfigError as error:
                raise self._failure(part, error) from error
            env.part = part
            yield env

    def counters(self) -> dict[str, float]:
        """Return the counts and seconds of all parts together, and episodes and faults of each; they only grow."""
        total: dict[str, float] = {}
        for part, pool in self.parts.items():
            own = pool.counters()
            total |= {name: total.get(name, 0.0) + count for name, count in own.items()}
            total[f"env/{part}/episodes"] = own["env/episodes"]
            total[f"env/{part}/faults"] = sum(own[name] for name in own if name.startswith("env/fault_"))
        return total

    def states(self) -> dict[str, int]:
        """Count the environments in each state, of all parts together."""
        total = Counter[str]()
        for pool in self.parts.values():
            total.update(pool.states())
        return dict(total)

    def _failure(self, part: str, error: ConfigError) -> ArpoError:
        """Return the error of an episode whose part has no environment, and let that part start again."""
        states = self.states()
        if not self._running or sum(states.values()) == states["lost"]:
            return error
        if part not in self._restarts:
            self._restarts[part] = asyncio.create_task(self._restart(part))
        return EnvError("crash", f"part {part} has no environment: {error}")

    async def _restart(self, part: str) -> None:
        log.warning("part %s is closed and started again; the others go on", part)
        try:
            await self.parts[part].close()
            await self.parts[part].start()
        except ArpoError as error:
            log.error("part %s does not come up again: %s", part, error)  # noqa: TRY400 - its message says it all
        finally:
            del self._restarts[part]


Pool = EnvPool | MixedPool
"""The environments of a run: of one kind, or of several."""
