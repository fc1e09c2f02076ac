"""Offline data for the warm start: scripted solutions, with as many mistakes as one asks for."""

import hashlib
import json
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader
from typing_extensions import override

from arpo.agent.actions import Click, Finished
from arpo.agent.prompt import Prompt
from arpo.agent.render import render_response
from arpo.datamodules.collecting import Demonstration, DemonstrationCollector, DemonstrationStep
from arpo.host.files import write_atomically
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.seeds import derive_seed
from arpo.types import Outcome, Step, Task, Trajectory

log = logging.getLogger(__name__)


class DemonstrationDataModule(L.LightningDataModule):
    """Demonstrations that are collected once, kept on disk, and served shuffled, by optimizer steps.

    Args:
        collector: Plays what is not there yet.
        tasks: What to demonstrate.
        directory: Where demonstrations are kept; collected again only when tasks or collector changed.
        prompt: The prompt that the policy will be trained and used with.
        make_model: Called with all texts of the demonstrations when `model` does not exist yet: writes it.
        model: Directory of the checkpoint that is trained.
        per_task: Demonstrations a task.
        steps: Optimizer steps of the run.
        batch_size: Demonstrations a step.

    Raises:
        ConfigError: By `setup`, if the model that is there sees images of another size.
    """

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        collector: DemonstrationCollector,
        tasks: Sequence[Task],
        directory: str | Path,
        prompt: Prompt,
        make_model: Callable[..., None],
        model: str | Path,
        *,
        per_task: int,
        steps: int,
        batch_size: int,
    ) -> None:
        super().__init__()
        self.collector = collector
        self.tasks = list(tasks)
        self.directory = Path(directory)
        self.prompt = prompt
        self.make_model = make_model
        self.model = Path(model)
        self.per_task = per_task
        self.steps = steps
        self.batch_size = batch_size
        self._trajectories: list[Trajectory] = []

    @override
    def setup(self, stage: str) -> None:
        demonstrations = self._load() or self._collect()
        least, most = self.collector.image_limits
        if not (self.model / "config.json").exists():
            self.make_model(self.model, corpus=corpus(demonstrations, self.prompt, most, self.collector.seed))
        chat = ChatTokenizer(self.model)
        chat.check_image_limits(least, most)
        self._trajectories = [
            as_trajectory(f"demonstration/{number}", demonstration, chat, self.prompt, self.directory)
            for number, demonstration in enumerate(demonstrations)
        ]
        rate = sum(demonstration.success for demonstration in demonstrations) / len(demonstrations)
        log.info("%d demonstrations, %.0f %% of them succeed", len(demonstrations), 100 * rate)

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        rng = random.Random(derive_seed(self.collector.seed, "batches"))
        size = min(self.batch_size, len(self._trajectories))
        batches = [rng.sample(self._trajectories, size) for _ in range(self.steps)]
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    def _fingerprint(self) -> str:
        """Return a digest of what the demonstrations depend on."""
        tasks = [(task.id, dict(task.config)) for task in self.tasks]
        how = self.collector
        limits = (self.per_task, how.max_steps, *how.image_limits, how.success_threshold, how.seed)
        return hashlib.sha256(repr((tasks, how.demonstrator, limits)).encode()).hexdigest()

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
        demonstrations = self.collector.collect(self.tasks, self.per_task)
        self._save(demonstrations, self.collector.screens)
        return demonstrations

    def _save(self, demonstrations: Sequence[Demonstration], screens: dict[str, bytes]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        for key, png in screens.items():
            (self.directory / f"{key}.png").write_bytes(png)
        lines = [json.dumps({"fingerprint": self._fingerprint()}), *(_encode(d) for d in demonstrations)]
        write_atomically(self.directory / "demonstrations.jsonl", "\n".join(lines) + "\n")


def corpus(demonstrations: Sequence[Demonstration], prompt: Prompt, max_pixels: int, seed: int) -> list[str]:
    """Return every text that a tokenizer for these demonstrations should know, and clicks all over the screen."""
    rng = random.Random(derive_seed(seed, "corpus"))
    side = int(max_pixels**0.5 * 1.5)
    clicks = [render_response(Click(rng.randrange(side), rng.randrange(side))) for _ in range(3000)]
    responses = [step.response for demonstration in demonstrations for step in demonstration.steps]
    instructions = sorted({demonstration.instruction for demonstration in demonstrations})
    return [*instructions * 4, *responses, *clicks, *[render_response(Finished())] * 50, prompt.system]


def as_trajectory(
    identity: str, demonstration: Demonstration, chat: ChatTokenizer, prompt: Prompt, directory: Path
) -> Trajectory:
    """Return a demonstration in the form of a sampled trajectory, so that the trainer sees what it will see later."""
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
    return json.dumps(asdict(demonstration) | {"steps": [astuple(step) for step in demonstration.steps]})


def _decode(line: str) -> Demonstration:
    record = json.loads(line)
    steps = tuple(DemonstrationStep(*step) for step in record.pop("steps"))
    return Demonstration(steps=steps, **record)
