"""Offline data for the warm start: scripted solutions, with as many mistakes as one asks for."""

import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader
from typing_extensions import override

from arpo.agent.actions import Click, Finished
from arpo.agent.prompt import Prompt
from arpo.agent.render import render_response
from arpo.datamodules.collecting import DemonstrationCollector
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.curation.told import as_told
from arpo.rollout.seeds import derive_seed
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Task, Trajectory

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
        image_window: Screenshots that the policy will see at once; None: all. With a window, each step is a sequence.

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
        image_window: int | None = None,
    ) -> None:
        super().__init__()
        self.collector = collector
        self.tasks = list(tasks)
        self.store = TrajectoryStore(directory)
        self.prompt = prompt
        self.make_model = make_model
        self.model = Path(model)
        self.per_task = per_task
        self.steps = steps
        self.batch_size = batch_size
        self.image_window = image_window
        self._trajectories: list[Trajectory] = []

    @override
    def setup(self, stage: str) -> None:
        demonstrations = self._load() or self._collect()
        least, most = self.collector.image_limits
        if not (self.model / "config.json").exists():
            self.make_model(self.model, corpus=corpus(demonstrations, self.prompt, most, self.collector.seed))
        chat = ChatTokenizer(self.model)
        chat.check_image_limits(least, most)
        self._trajectories = [as_told(each, chat, self.prompt, self.image_window) for each in demonstrations]
        rate = fmean(demonstration.task_reward for demonstration in demonstrations)
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

    def _load(self) -> list[Trajectory]:
        kept = self.store.read("demonstration", 0)
        fits = len(kept) == len(self.tasks) * self.per_task
        if not fits or any(demonstration.sampling != self._fingerprint() for demonstration in kept):
            if kept:
                log.info("%s holds demonstrations of other tasks or settings: collecting new ones", self.store.root)
            return []
        return [self.store.load_screenshots(demonstration) for demonstration in kept]

    def _collect(self) -> list[Trajectory]:
        made = self.collector.collect(self.tasks, self.per_task)
        made = [replace(demonstration, sampling=self._fingerprint()) for demonstration in made]
        self.store.truncate(-1, -1)
        for demonstration in made:
            self.store.write(demonstration)
        return made


def corpus(demonstrations: Sequence[Trajectory], prompt: Prompt, max_pixels: int, seed: int) -> list[str]:
    """Return every text that a tokenizer for these demonstrations should know, and clicks all over the screen."""
    rng = random.Random(derive_seed(seed, "corpus"))
    side = int(max_pixels**0.5 * 1.5)
    clicks = [render_response(Click(rng.randrange(side), rng.randrange(side))) for _ in range(3000)]
    responses = [step.response for demonstration in demonstrations for step in demonstration.steps]
    instructions = sorted({demonstration.instruction for demonstration in demonstrations})
    return [*instructions * 4, *responses, *clicks, *[render_response(Finished())] * 50, prompt.system]
