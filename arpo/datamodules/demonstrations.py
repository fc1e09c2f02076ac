"""Offline data for the warm start: scripted solutions, with as many mistakes as one asks for."""

import asyncio
import hashlib
import json
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader
from typing_extensions import override

from arpo.agent.actions import Action, Click, Finished, Terminal
from arpo.agent.coordinates import CoordinateFrame, smart_resize
from arpo.agent.prompt import Prompt
from arpo.agent.render import render_response
from arpo.datamodules.demonstrator import Demonstrator
from arpo.envs.pool.lease import LeasedEnv
from arpo.envs.pool.pool import EnvPool
from arpo.errors import ConfigError, EnvError
from arpo.host.files import write_atomically
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.seeds import derive_seed
from arpo.types import Observation, Outcome, Step, Task, Trajectory, screenshot_key

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Attempts at an episode that an environment fails."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DemonstrationStep:
    """One screen and what the demonstrator answered."""

    screenshot: str
    width: int
    height: int
    response: str


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One demonstrated episode as text: a tokenizer can be made from it before there is one."""

    task_id: str
    domain: str
    instruction: str
    steps: tuple[DemonstrationStep, ...]
    success: bool


class DemonstrationDataModule(L.LightningDataModule):
    """Collects demonstrations once, keeps them on disk, and serves them shuffled, by optimizer steps.

    Args:
        pool: Environments that can solve themselves.
        tasks: What to demonstrate.
        directory: Where demonstrations are kept; collected again only when tasks or demonstrator changed.
        prompt: The prompt that the policy will be trained and used with.
        make_model: Called with all texts of the demonstrations when `model` does not exist yet: writes it.
        model: Directory of the checkpoint that is trained.
        demonstrator: How tasks are solved.
        per_task: Demonstrations a task.
        max_steps: Step limit of a demonstration.
        steps: Optimizer steps of the run.
        batch_size: Demonstrations a step.
        image_limits: Smallest and largest number of pixels of an image as the model sees it.
        success_threshold: A demonstration counts as a success above this task reward.
        seed: Seeds mistakes and the order of batches.

    Raises:
        ConfigError: By `setup`, if the model that is there sees images of another size.
    """

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        pool: EnvPool,
        tasks: Sequence[Task],
        directory: str | Path,
        prompt: Prompt,
        make_model: Callable[..., None],
        model: str | Path,
        *,
        demonstrator: Demonstrator,
        per_task: int,
        max_steps: int,
        steps: int,
        batch_size: int,
        image_limits: tuple[int, int],
        success_threshold: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.pool, self.tasks, self.prompt = pool, list(tasks), prompt
        self.directory, self.model, self.make_model = Path(directory), Path(model), make_model
        self.demonstrator, self.per_task, self.max_steps = demonstrator, per_task, max_steps
        self.steps, self.batch_size = steps, batch_size
        self.min_pixels, self.max_pixels = image_limits
        self.success_threshold = success_threshold
        self.seed = seed
        self._trajectories: list[Trajectory] = []

    @override
    def setup(self, stage: str) -> None:
        demonstrations = self._load() or self._collect()
        if not (self.model / "config.json").exists():
            self.make_model(self.model, corpus=corpus(demonstrations, self.prompt, self.max_pixels, self.seed))
        chat = ChatTokenizer(self.model)
        chat.check_image_limits(self.min_pixels, self.max_pixels)
        self._trajectories = [
            as_trajectory(f"demonstration/{number}", demonstration, chat, self.prompt, self.directory)
            for number, demonstration in enumerate(demonstrations)
        ]
        rate = sum(demonstration.success for demonstration in demonstrations) / len(demonstrations)
        log.info("%d demonstrations, %.0f %% of them succeed", len(demonstrations), 100 * rate)

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        rng = random.Random(derive_seed(self.seed, "batches"))
        size = min(self.batch_size, len(self._trajectories))
        batches = [rng.sample(self._trajectories, size) for _ in range(self.steps)]
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    # --- collecting -------------------------------------------------------------------------------------------------

    def _fingerprint(self) -> str:
        """What the demonstrations depend on."""
        tasks = [(task.id, dict(task.config)) for task in self.tasks]
        limits = (self.per_task, self.max_steps, self.min_pixels, self.max_pixels, self.seed)
        return hashlib.sha256(repr((tasks, self.demonstrator, limits)).encode()).hexdigest()

    def _load(self) -> list[Demonstration]:
        path = self.directory / "demonstrations.jsonl"
        if not path.exists():
            return []
        head, *lines = path.read_text().splitlines()
        if json.loads(head)["fingerprint"] != self._fingerprint():
            log.info("the demonstrations in %s are of other tasks or settings: collecting new ones", self.directory)
            return []
        return [_decode(line) for line in lines]

    def _collect(self) -> list[Demonstration]:
        jobs = [(task, number) for task in self.tasks for number in range(self.per_task)]
        log.info("collecting %d demonstrations of %d tasks", len(jobs), len(self.tasks))
        screens: dict[str, bytes] = {}

        async def run() -> list[Demonstration]:
            await self.pool.start()
            try:
                lengths = dict(
                    zip(
                        (task.id for task in self.tasks),
                        await asyncio.gather(*(_retried(self._solution_length, task) for task in self.tasks)),
                        strict=True,
                    )
                )
                return await asyncio.gather(
                    *(_retried(self._demonstrate, task, number, lengths[task.id], screens) for task, number in jobs)
                )
            finally:
                await self.pool.close()

        demonstrations = asyncio.run(run())
        self._save(demonstrations, screens)
        return demonstrations

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

    async def _demonstrate(self, task: Task, number: int, length: int, screens: dict[str, bytes]) -> Demonstration:
        rng = random.Random(derive_seed(self.seed, "demonstration", task.id, number))
        steps: list[DemonstrationStep] = []
        async with self.pool.lease(task) as env:
            observation = await env.reset(task)
            instruction = observation.instruction or task.instruction
            for _ in range(self.max_steps):
                action = await self._next_action(env, task, length, rng)
                steps.append(self._step(observation, action, screens))
                result = await env.step(self._frame(observation).to_screen(self._frame(observation).to_model(action)))
                if result.terminated or isinstance(action, Terminal):
                    break
                observation = result.observation
            success = await env.evaluate() > self.success_threshold
        return Demonstration(task.id, task.domain, instruction, tuple(steps), success)

    async def _next_action(self, env: LeasedEnv, task: Task, length: int, rng: random.Random) -> Action:
        right = await env.next_solution()
        if right is None:
            return Finished()
        habit = random.Random(derive_seed(self.seed, "habit", task.id, repr(right)))
        return self.demonstrator.act(right, await env.distractors(), length, rng, habit)

    def _frame(self, observation: Observation) -> CoordinateFrame:
        height, width = smart_resize(
            observation.height, observation.width, min_pixels=self.min_pixels, max_pixels=self.max_pixels
        )
        return CoordinateFrame(observation.width, observation.height, width, height)

    def _step(self, observation: Observation, action: Action, screens: dict[str, bytes]) -> DemonstrationStep:
        key = screenshot_key(observation.screenshot)
        screens[key] = observation.screenshot
        response = render_response(self._frame(observation).to_model(action))
        return DemonstrationStep(key, observation.width, observation.height, response)

    def _save(self, demonstrations: Sequence[Demonstration], screens: dict[str, bytes]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for key, png in screens.items():
            (self.directory / f"{key}.png").write_bytes(png)
        lines = [json.dumps({"fingerprint": self._fingerprint()}), *(_encode(d) for d in demonstrations)]
        write_atomically(self.directory / "demonstrations.jsonl", "\n".join(lines) + "\n")


async def _retried(episode: Callable[..., Coroutine[Any, Any, _T]], *arguments: Any) -> _T:
    """Give what an episode gives, on another environment where one fails."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return await episode(*arguments)
        except EnvError as error:
            log.warning("demonstrating again, because the environment failed: %s", error)
    return await episode(*arguments)


def corpus(demonstrations: Sequence[Demonstration], prompt: Prompt, max_pixels: int, seed: int) -> list[str]:
    """Give every text that a tokenizer for these demonstrations should know, and clicks all over the screen."""
    rng = random.Random(derive_seed(seed, "corpus"))
    side = int(max_pixels**0.5 * 1.5)
    clicks = [render_response(Click(rng.randrange(side), rng.randrange(side))) for _ in range(3000)]
    responses = [step.response for demonstration in demonstrations for step in demonstration.steps]
    instructions = sorted({demonstration.instruction for demonstration in demonstrations})
    return [*instructions * 4, *responses, *clicks, *[render_response(Finished())] * 50, prompt.system]


def as_trajectory(
    identity: str, demonstration: Demonstration, chat: ChatTokenizer, prompt: Prompt, directory: Path
) -> Trajectory:
    """Give a demonstration the form of a sampled trajectory, so that the trainer sees what it will see later."""
    prompt_ids = chat.first_prompt(prompt.messages(demonstration.instruction))
    steps: list[Step] = []
    for step in demonstration.steps:
        response_ids = chat.encode_response(step.response)
        steps.append(
            Step(
                screenshot=step.screenshot,
                width=step.width,
                height=step.height,
                prompt_ids=prompt_ids,
                response_ids=response_ids,
                sampler_logprobs=(0.0,) * len(response_ids),
                policy_version=0,
                response=step.response,
            )
        )
        prompt_ids = chat.next_prompt(response_ids)
    trajectory = Trajectory(
        id=identity,
        task_id=demonstration.task_id,
        domain=demonstration.domain,
        instruction=demonstration.instruction,
        seed=0,
        steps=tuple(steps),
        outcome=Outcome.TERMINATED,
        task_reward=float(demonstration.success),
        format_reward=0.0,
    )
    keys = {step.screenshot for step in steps}
    return replace(trajectory, screenshots={key: (directory / f"{key}.png").read_bytes() for key in keys})


def _encode(demonstration: Demonstration) -> str:
    return json.dumps(
        {
            "task_id": demonstration.task_id,
            "domain": demonstration.domain,
            "instruction": demonstration.instruction,
            "success": demonstration.success,
            "steps": [[s.screenshot, s.width, s.height, s.response] for s in demonstration.steps],
        }
    )


def _decode(line: str) -> Demonstration:
    record = json.loads(line)
    steps = tuple(DemonstrationStep(*step) for step in record.pop("steps"))
    return Demonstration(steps=steps, **record)
