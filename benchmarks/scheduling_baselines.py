"""Schedules that the collector does not have, around the same pool and engine: in lock-step, and task by task."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from scheduling_parts import Engine

from arpo.agent.actions import Action, Finished
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.pool.pool import EnvPool
from arpo.envs.protocol import StepResult
from arpo.inference.engine import GenerateRequest, Response
from arpo.types import Observation, Task

GROUP_SIZE = 8
_T = TypeVar("_T")


class LockStep:
    """A barrier behind every call: whoever is in the batch waits until all of it are as far."""

    def __init__(self) -> None:
        self._members = self._arrived = 0
        self._gate = asyncio.Event()

    async def together(self, call: Awaitable[_T]) -> _T:
        answer = await call
        gate = self._gate
        self._arrived += 1
        self._open()
        await gate.wait()
        return answer

    def join(self) -> None:
        self._members += 1

    def leave(self) -> None:
        self._members -= 1
        self._open()

    def _open(self) -> None:
        if self._arrived >= self._members:
            gate, self._gate, self._arrived = self._gate, asyncio.Event(), 0
            gate.set()


class InStep(LeasedEnv):
    """An environment that resets and steps together with all others; it is judged when its episode ends."""

    def __init__(self, env: LeasedEnv, steps: LockStep) -> None:
        self._inner, self._steps = env, steps

    async def reset(self, task: Task) -> Observation:
        return await self._steps.together(self._inner.reset(task))

    async def step(self, action: Action) -> StepResult:
        result = await self._steps.together(self._inner.step(action))
        if isinstance(action, Finished):
            self._steps.leave()
        return result

    async def evaluate(self) -> float:
        return await self._inner.evaluate()


class LockStepPool(EnvPool):
    """The official ARPO: as many environments as episodes, and all step together."""

    steps: LockStep

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[LeasedEnv]:
        self.steps.join()
        async with super().lease(task) as env:
            yield InStep(env, self.steps)


class LockStepEngine(Engine):
    """An engine that answers one batch after the other."""

    steps: LockStep

    async def generate(self, request: GenerateRequest) -> Response:
        return await self.steps.together(super().generate(request))


class TaskWisePool(EnvPool):
    """Blocks of as many environments as a group has members: a block takes the next task when all have ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._blocks = asyncio.Semaphore(self.size // GROUP_SIZE)
        self._admitted: dict[str, asyncio.Task[bool]] = {}
        self._left: dict[str, int] = {}

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[LeasedEnv]:
        if task.id not in self._admitted:
            self._admitted[task.id] = asyncio.create_task(self._blocks.acquire())
            self._left[task.id] = GROUP_SIZE
        await asyncio.shield(self._admitted[task.id])
        async with super().lease(task) as env:
            yield env
        self._left[task.id] -= 1
        if not self._left[task.id]:
            del self._admitted[task.id]
            self._blocks.release()
