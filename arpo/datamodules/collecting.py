"""Demonstrations collected from environments that can solve themselves."""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import tenacity

from arpo.agent.actions import Action, Finished, Terminal
from arpo.agent.coordinates import CoordinateFrame, smart_resize
from arpo.agent.render import render_response
from arpo.datamodules.demonstrator import Demonstrator
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ConfigError, EnvError
from arpo.host.heartbeat import Heartbeat
from arpo.rollout.seeds import derive_seed
from arpo.types import Observation, Task, screenshot_key

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DemonstrationStep:
    """One screen and what the demonstrator answered."""

    screenshot: str
    """SHA-256 of the PNG."""
    width: int
    """Screen pixels."""
    height: int
    """Screen pixels."""
    response: str


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstrated episode as text: a tokenizer can be made from it before there is one."""

    task_id: str
    domain: str
    instruction: str
    steps: tuple[DemonstrationStep, ...]
    success: bool


def _log_retry(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    log.warning("demonstrating again, because the environment failed: %s", state.outcome.exception())


_elsewhere = tenacity.retry(
    retry=tenacity.retry_if_exception_type(EnvError),
    stop=tenacity.stop_after_attempt(3),
    before_sleep=_log_retry,
    reraise=True,
)
"""Plays an episode that an environment fails again, on another environment: the pool takes the failed one out."""


@dataclass(slots=True)
class DemonstrationCollector:
    """One collection: every task, so many times, on whatever environment is free.

    Args:
        pool: Environments that can solve themselves; not started.
        demonstrator: How tasks are solved.
        max_steps: Step limit of a demonstration.
        image_limits: Smallest and largest number of pixels of an image as the model sees it.
        success_threshold: A demonstration is a success when its task reward lies above it.
        seed: Seeds the mistakes, and the order in which they are learned from.

    Attributes:
        screens: PNG bytes of every screen that was seen, by SHA-256.
    """

    pool: EnvPool
    demonstrator: Demonstrator
    max_steps: int
    image_limits: tuple[int, int]
    success_threshold: float
    seed: int = 0
    screens: dict[str, bytes] = field(default_factory=dict, init=False)
    _done: int = field(default=0, init=False)

    def collect(self, tasks: Sequence[Task], per_task: int) -> list[Demonstration]:
        """Return `per_task` demonstrations of each task, task by task; blocks.

        Raises:
            ConfigError: If the solution of a task takes more than `max_steps` steps.
            EnvError: If environments failed every attempt at an episode.
        """
        total = len(tasks) * per_task
        log.info("collecting %d demonstrations of %d tasks", total, len(tasks))
        with Heartbeat(lambda: f"{self._done} of {total} demonstrations are collected"):
            return asyncio.run(self._collect(tasks, per_task))

    async def _collect(self, tasks: Sequence[Task], per_task: int) -> list[Demonstration]:
        await self.pool.start()
        try:
            lengths = await asyncio.gather(*(self._solution_length(task) for task in tasks))
            episodes = (
                self._demonstrate(task, number, length)
                for task, length in zip(tasks, lengths, strict=True)
                for number in range(per_task)
            )
            return await asyncio.gather(*episodes)
        finally:
            await self.pool.close()

    @_elsewhere
    async def _solution_length(self, task: Task) -> int:
        async with self.pool.lease(task) as env:
            await env.reset(task)
            for length in range(self.max_steps):
                action = await env.next_solution()
                if action is None:
                    return length
                if (await env.step(action)).terminated or isinstance(action, Terminal):
                    return length + 1
        raise ConfigError(
            f"the scripted solution of task {task.id} takes more than max_steps={self.max_steps} steps; "
            "raise max_steps or choose another seed of the page"
        )

    @_elsewhere
    async def _demonstrate(self, task: Task, number: int, length: int) -> Demonstration:
        rng = random.Random(derive_seed(self.seed, "demonstration", task.id, number))
        steps: list[DemonstrationStep] = []
        async with self.pool.lease(task) as env:
            observation = await env.reset(task)
            instruction = observation.instruction or task.instruction
            for _ in range(self.max_steps):
                action = await self._next_action(env, task, length, rng)
                frame = self._frame(observation)
                steps.append(self._step(observation, frame.to_model(action)))
                result = await env.step(frame.to_screen(frame.to_model(action)))
                if result.terminated or isinstance(action, Terminal):
                    break
                observation = result.observation
            success = await env.evaluate() > self.success_threshold
        self._done += 1
        return Demonstration(task.id, task.domain, instruction, tuple(steps), success)

    async def _next_action(self, env: LeasedEnv, task: Task, length: int, rng: random.Random) -> Action:
        right = await env.next_solution()
        if right is None:
            return Finished()
        habit = random.Random(derive_seed(self.seed, "habit", task.id, repr(right)))
        return self.demonstrator.act(right, await env.distractors(), length, rng, habit)

    def _frame(self, observation: Observation) -> CoordinateFrame:
        least, most = self.image_limits
        height, width = smart_resize(observation.height, observation.width, min_pixels=least, max_pixels=most)
        return CoordinateFrame(observation.width, observation.height, width, height)

    def _step(self, observation: Observation, action: Action) -> DemonstrationStep:
        key = screenshot_key(observation.screenshot)
        self.screens[key] = observation.screenshot
        return DemonstrationStep(key, observation.width, observation.height, render_response(action))
