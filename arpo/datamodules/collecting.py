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
from arpo.types import Observation, Outcome, Step, Task, Trajectory, screenshot_key

log = logging.getLogger(__name__)


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
    """

    pool: EnvPool
    demonstrator: Demonstrator
    max_steps: int
    image_limits: tuple[int, int]
    success_threshold: float
    seed: int = 0
    _done: int = field(default=0, init=False)

    def collect(self, tasks: Sequence[Task], per_task: int) -> list[Trajectory]:
        """Return `per_task` demonstrations of each task, task by task; blocks.

        They are text without token ids: a tokenizer can be made from them before there is one. The task reward is 1
        for a success, and 0 for a failure.

        Raises:
            ConfigError: If the solution of a task takes more than `max_steps` steps.
            EnvError: If environments failed every attempt at an episode.
        """
        total = len(tasks) * per_task
        log.info("collecting %d demonstrations of %d tasks", total, len(tasks))
        with Heartbeat(lambda: f"{self._done} of {total} demonstrations are collected"):
            return asyncio.run(self._collect(tasks, per_task))

    async def _collect(self, tasks: Sequence[Task], per_task: int) -> list[Trajectory]:
        await self.pool.start()
        try:
            lengths = await asyncio.gather(*(self._solution_length(task) for task in tasks))
            episodes = (
                self._demonstrate(f"demonstration-0/{place}/{number}", task, number, length)
                for place, (task, length) in enumerate(zip(tasks, lengths, strict=True))
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
    async def _demonstrate(self, identity: str, task: Task, number: int, length: int) -> Trajectory:
        rng = random.Random(derive_seed(self.seed, "demonstration", task.id, number))
        steps: list[Step] = []
        screenshots: dict[str, bytes] = {}
        async with self.pool.lease(task) as env:
            observation = await env.reset(task)
            instruction = observation.instruction or task.instruction
            for _ in range(self.max_steps):
                action = await self._next_action(env, task, length, rng)
                frame = self._frame(observation)
                steps.append(_step(observation, frame.to_model(action)))
                screenshots[steps[-1].screenshot] = observation.screenshot
                result = await env.step(frame.to_screen(frame.to_model(action)))
                if result.terminated or isinstance(action, Terminal):
                    break
                observation = result.observation
            success = await env.evaluate() > self.success_threshold
        self._done += 1
        return Trajectory(
            id=identity,
            task_id=task.id,
            domain=task.domain,
            instruction=instruction,
            seed=0,
            steps=tuple(steps),
            outcome=Outcome.TERMINATED,
            task_reward=float(success),
            format_reward=0.0,
            screenshots=screenshots,
        )

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


def _step(observation: Observation, action: Action) -> Step:
    return Step(
        screenshot=screenshot_key(observation.screenshot),
        width=observation.width,
        height=observation.height,
        prompt_ids=(),
        response_ids=(),
        sampler_logprobs=(),
        policy_version=0,
        response=render_response(action),
    )
