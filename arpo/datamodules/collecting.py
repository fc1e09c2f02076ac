"""Demonstrations collected from environments that can solve themselves."""

import asyncio
import logging
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import tenacity

from arpo.agent.actions import Action, Click, CoordinateFrame, Finished, Terminal, smart_resize
from arpo.agent.prompt import GRAMMARS, GrammarName
from arpo.bounds import AtLeastOne, Threshold, checked
from arpo.datamodules.demonstrator import Demonstrator
from arpo.envs.mixture import Pool
from arpo.envs.pool.lease import LeasedEnv
from arpo.errors import ConfigError, DesktopDestroyedError, EnvError
from arpo.host.log_lines import Heartbeat
from arpo.host.threads import BackgroundLoop
from arpo.models.family import family_named
from arpo.rollout.episode import outcome_of
from arpo.rollout.sampler import derive_seed
from arpo.types import Observation, Outcome, Step, Task, Trajectory, screenshot_key

log = logging.getLogger(__name__)


def _log_retry(state: tenacity.RetryCallState) -> None:
    assert state.outcome is not None
    log.warning("demonstrating again, because the environment failed: %s", state.outcome.exception())


_elsewhere = tenacity.retry(
    retry=tenacity.retry_if_exception_type((EnvError, DesktopDestroyedError)),
    stop=tenacity.stop_after_attempt(3),
    before_sleep=_log_retry,
    reraise=True,
)
"""Plays an episode that an environment fails again, on another environment: the pool takes the failed one out."""


@dataclass(slots=True, kw_only=True)
class Collector:
    """The arguments of every collector of demonstrations.

    Args:
        max_steps: The most steps of a demonstration; longer ones are left out.
        family: Name of the family of the model, whose way to name points it is: `model_type` in its `config.json`.
        image_limits: Smallest and largest number of pixels of an image as the model sees it.
        success_threshold: A demonstration that is played is a success when its task reward lies above it.
        seed: Seeds mistakes, where any are made, and the order in which demonstrations are learned from.
        grammar: Of the responses; a data module sets that of its prompt.
    """

    max_steps: AtLeastOne
    family: str
    image_limits: tuple[AtLeastOne, AtLeastOne]
    success_threshold: Threshold
    seed: int = 0
    grammar: GrammarName = "ui_tars"

    def __post_init__(self) -> None:
        family_named(self.family)
        least, most = self.image_limits
        if least > most:
            raise ConfigError(f"most_pixels must be at least {least}, got {most}; see image_limits")

    def frame(self, observation: Observation) -> CoordinateFrame:
        """Return the frame of a screen and the image of it that the model sees."""
        known, (least, most) = family_named(self.family), self.image_limits
        height, width = smart_resize(
            observation.height, observation.width, factor=known.resize_factor, min_pixels=least, max_pixels=most
        )
        return known.frame((observation.width, observation.height), (width, height))


@checked
@dataclass(slots=True, kw_only=True)
class DemonstrationCollector(Collector):
    """One collection: every task, so many times, on whatever environment is free.

    Args:
        pool: Environments that can solve themselves; not started.
        demonstrator: How tasks are solved, in `max_steps` steps at most.
    """

    pool: Pool
    demonstrator: Demonstrator
    _done: int = field(default=0, init=False)

    def collect(self, tasks: Sequence[Task], per_task: int, *, first: int = 0) -> Generator[list[Trajectory]]:
        """Yield `per_task` demonstrations of each task, task by task, as soon as those before them are there too.

        They are text without token ids: a tokenizer can be made from them before there is one. The task reward is 1
        for a success, and 0 for a failure. A task whose scripted solution takes more than `max_steps` steps, or
        whose screenshots cannot be used, yields an empty list. Tasks before the `first` were played by an earlier
        call. Closing the generator ends what still runs.
        """
        total = (len(tasks) - first) * per_task
        log.info("collecting %d demonstrations of %d tasks", total, len(tasks) - first)
        loop = BackgroundLoop("demonstrations")
        loop.start()
        played: list[asyncio.Task[list[Trajectory]]] = []
        try:
            with Heartbeat(lambda: f"{self._done} of {total} demonstrations are collected"):
                played = loop.run(self._begin(tasks, per_task, first))
                for task in played:
                    yield loop.run(asyncio.wait_for(task, None))
        finally:
            loop.run(self._end(played))
            loop.close()

    async def _begin(self, tasks: Sequence[Task], per_task: int, first: int) -> list[asyncio.Task[list[Trajectory]]]:
        await self.pool.start()
        # Environments go to the first that asks. If all tasks asked at once, every one would find out its length
        # before the first was demonstrated.
        turns = asyncio.Semaphore(self.pool.size)
        return [
            asyncio.create_task(self._in_turn(turns, place, tasks[place], per_task))
            for place in range(first, len(tasks))
        ]

    async def _end(self, played: Sequence[asyncio.Task[list[Trajectory]]]) -> None:
        for task in played:
            task.cancel()
        await asyncio.gather(*played, return_exceptions=True)  # none tries again while environments are closed
        await self.pool.close()

    async def _in_turn(self, turns: asyncio.Semaphore, place: int, task: Task, per_task: int) -> list[Trajectory]:
        """Return the demonstrations of a task, none where its desktop keeps showing what is no screenshot."""
        async with turns:
            try:
                # A demonstrator that never errs finds out how long the solution is by demonstrating it.
                length = await self._solution_length(task) if self.demonstrator.errs else 0
                if length > self.max_steps:
                    return []
                numbers = range(per_task)
                made = await asyncio.gather(*(self._demonstrate(place, task, number, length) for number in numbers))
            except EnvError as error:
                if error.kind != "screenshot":
                    raise
                log.warning("task %s cannot be demonstrated: %s", task.id, error)
                return []
        self._done += per_task
        whole = self.demonstrator.errs or all(each.outcome is not Outcome.MAX_STEPS for each in made)
        return made if whole else []

    @_elsewhere
    async def _solution_length(self, task: Task) -> int:
        """Return the number of steps of the scripted solution, at most `max_steps` + 1."""
        async with self.pool.lease(task) as env:
            await env.reset(task)
            for length in range(self.max_steps):
                action = await env.next_solution()
                if action is None:
                    return length
                if (await env.step(action)).terminated or isinstance(action, Terminal):
                    return length + 1
        return self.max_steps + 1

    @_elsewhere
    async def _demonstrate(self, place: int, task: Task, number: int, length: int) -> Trajectory:
        rng = random.Random(derive_seed(self.seed, "demonstration", task.id, number))
        steps: list[Step] = []
        screenshots: dict[str, bytes] = {}
        outcome: Outcome | None = None
        async with self.pool.lease(task) as env:
            observation = await env.reset(task)
            instruction = observation.instruction or task.instruction
            while len(steps) < self.max_steps and outcome is None:
                frame = self.frame(observation)
                said = frame.to_model(await self._next_action(env, task, length, rng))
                done = frame.to_screen(said)
                key, size = screenshot_key(observation.screenshot), (observation.width, observation.height)
                response = GRAMMARS[self.grammar].answer(said)
                steps.append(Step(key, *size, response, action=done.describe()))
                screenshots[key] = observation.screenshot
                result = await env.step(done)
                outcome = outcome_of(done, result)
                observation = result.observation
            success = await env.evaluate() > self.success_threshold
        identity = (f"demonstration-0/{place}/{number}", task.id, task.domain, instruction, 0)
        ended, reward = outcome or Outcome.MAX_STEPS, float(success)
        return Trajectory(*identity, tuple(steps), ended, reward, format_reward=0.0, screenshots=screenshots)

    async def _next_action(self, env: LeasedEnv, task: Task, length: int, rng: random.Random) -> Action:
        right = await env.next_solution()
        if right is None:
            return Finished()
        if not self.demonstrator.errs:
            return right
        habit = random.Random(derive_seed(self.seed, "habit", task.id, _habit_key(right)))
        return self.demonstrator.act(right, await env.distractors(), length, rng, habit)


def _habit_key(action: Action) -> str:
    """Return the text by which the habit of an action is seeded; each kind of click has one of its own in it."""
    if not isinstance(action, Click):
        return repr(action)
    kind = {("left", 2): "DoubleClick", ("right", 1): "RightClick", ("middle", 1): "MiddleClick"}
    return f"{kind.get((action.button, action.count), 'Click')}(x={action.x!r}, y={action.y!r})"
