"""Offline data for the warm start: scripted solutions, with as many mistakes as one asks for."""

import hashlib
import json
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader
from typing_extensions import override

from arpo.agent.actions import Click, Finished
from arpo.agent.prompt import GRAMMARS, ActionGrammar, Prompt
from arpo.bounds import AtLeastOne, NotNegative, Share, checked
from arpo.datamodules.collecting import DemonstrationCollector
from arpo.datamodules.published import PublishedCollector
from arpo.datamodules.rollouts import Batches
from arpo.errors import ConfigError, first_of
from arpo.host.files import atomically
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.curation.experience import retokenize
from arpo.rollout.sampler import derive_seed
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Step, Task, Trajectory

log = logging.getLogger(__name__)


LEFT_OUT = "left_out.json"
"""The file of a collection that names the tasks without demonstrations."""
HEAD = 0.1
"""The share of the demonstrations that are there before training begins; a tokenizer is made from them."""


@checked
class DemonstrationDataModule(L.LightningDataModule):
    """Demonstrations that are collected once, kept on disk, and served shuffled, by optimizer steps.

    Args:
        collector: Plays what is not there yet, or reads it from a file.
        tasks: What to demonstrate.
        directory: Where demonstrations are kept; collected again only when tasks or collector changed.
        prompt: The prompt that the policy will be trained and used with.
        make_model: Called with texts of the demonstrations when `model` does not exist yet: writes it.
        model: Directory of the checkpoint that is trained.
        per_task: Demonstrations a task.
        steps: Optimizer steps of the run, of `batch_size` demonstrations each.
        arrival: The share of the steps during which more and more of the demonstrations are used, task by task in
            random order; 0 uses all of them from the beginning.
        image_window: Screenshots that the policy will see at once; None: all. With a window, each step is a sequence.
        click_jitter: Standard deviation, in pixels of the model's image, by which a click is moved each time it is
            learned.
    """

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        collector: DemonstrationCollector | PublishedCollector,
        tasks: Sequence[Task],
        directory: str | Path,
        prompt: Prompt,
        make_model: Callable[..., None],
        model: str | Path,
        *,
        per_task: AtLeastOne,
        steps: AtLeastOne,
        batch_size: AtLeastOne,
        arrival: Share = 0.0,
        image_window: int | None = None,
        click_jitter: NotNegative = 0.0,
    ) -> None:
        super().__init__()
        self.collector = replace(collector, grammar=prompt.grammar)
        self.tasks = list(tasks)
        if arrival > 0:  # else the first ones would be of one page
            random.Random(derive_seed(collector.seed, "tasks")).shuffle(self.tasks)
        self.store = TrajectoryStore(directory)
        self.prompt = prompt
        self.make_model = make_model
        self.model = Path(model)
        self.per_task = per_task
        self.steps = steps
        self.batch_size = batch_size
        self.arrival = arrival
        self.image_window = image_window
        self.click_jitter = click_jitter
        self._demonstrations: list[Trajectory] = []

    @override
    def setup(self, stage: str) -> None:
        # One process collects, keeps and writes; the others read what it has kept.
        rank = self.trainer.global_rank if self.trainer is not None and self.trainer.world_size > 1 else None
        if self.trainer is not None and rank:
            self.trainer.strategy.barrier("demonstrations")
        self._demonstrations = self._kept_or_collected()
        if not self._demonstrations:
            raise ConfigError(
                f"no task can be demonstrated in max_steps={self.collector.max_steps} steps; raise max_steps"
            )
        least, most = self.collector.image_limits
        if not (self.model / "config.json").exists():
            known = self._demonstrations[: self._known(0)]
            with atomically(self.model) as partial:
                self.make_model(partial, corpus=corpus(known, self.prompt, most, self.collector.seed))
        self._chat = ChatTokenizer(self.model)
        self._chat.check_pictures(self.collector.family, least, most)
        if self.trainer is not None and rank == 0:
            self.trainer.strategy.barrier("demonstrations")

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(Batches(self._batches, self.steps), batch_size=None)

    def _batches(self) -> Iterator[list[Trajectory]]:
        rng = random.Random(derive_seed(self.collector.seed, "batches"))
        retokenized: dict[str, Trajectory] = {}
        grammar = GRAMMARS[self.prompt.grammar]
        for step in range(self.steps):
            known = self._demonstrations[: self._known(step)]
            drawn = rng.sample(known, min(self.batch_size, len(known)))
            if self.click_jitter:
                moved = [with_click_jitter(each, grammar, self._spread(each.steps[0]), rng) for each in drawn]
                yield list(map(self._retokenize, moved))
                continue
            retokenized |= {each.id: self._retokenize(each) for each in drawn if each.id not in retokenized}
            yield [retokenized[each.id] for each in drawn]

    def _spread(self, step: Step) -> tuple[float, float]:
        """Return the jitter of a click, across and down, in the units in which the model names points."""
        seen = self._chat.model_size(step.width, step.height)
        frame = self._chat.family.frame((step.width, step.height), seen)
        return self.click_jitter * (frame.model_width / seen[0]), self.click_jitter * (frame.model_height / seen[1])

    def _retokenize(self, demonstration: Trajectory) -> Trajectory:
        steps = [replace(step, response=self._chat.scripted(step.response)) for step in demonstration.steps]
        return retokenize(replace(demonstration, steps=tuple(steps)), self._chat, self.prompt, self.image_window)

    def _known(self, step: int) -> int | None:
        """Return the number of demonstrations that the batch of a step is drawn from; None for all."""
        share = max(HEAD, step / (self.arrival * self.steps)) if self.arrival else 1.0
        return math.ceil(share * len(self.tasks) * self.per_task) if share < 1 else None

    def _kept_or_collected(self) -> list[Trajectory]:
        """Return the kept demonstrations and those collected after them, in the order of the tasks."""
        kept = self._kept()
        demonstrations = list(map(self.store.load_screenshots, kept))
        played = _place(kept[-1]) + 1 if kept else 0
        path = self.store.root / LEFT_OUT  # of an earlier run that has played all tasks
        whole = kept and path.exists() and json.loads(path.read_bytes())["sampling"] == self._fingerprint()
        if played < len(self.tasks) and not whole:
            demonstrations += self._collected(played)
        if demonstrations:
            share = fmean(demonstration.task_reward for demonstration in demonstrations)
            log.info("%d demonstrations, %.0f %% of them succeed", len(demonstrations), 100 * share)
        return demonstrations

    def _collected(self, played: int) -> list[Trajectory]:
        """Return the demonstrations of each task from one on, kept on disk; name the tasks that have none."""
        if played == 0:
            self.store.truncate(-1, -1)
            (self.store.root / LEFT_OUT).unlink(missing_ok=True)
        fingerprint = self._fingerprint()
        made: list[Trajectory] = []
        with closing(self.collector.collect(self.tasks, self.per_task, first=played)) as collected:
            for each in collected:
                for demonstration in each:
                    made.append(replace(demonstration, sampling=fingerprint))
                    self.store.write(made[-1])
        places = set(map(_place, self.store.read("demonstration", 0)))
        left_out = [task.id for place, task in enumerate(self.tasks) if place not in places]
        if left_out:
            log.warning(
                "%d of %d tasks have no demonstration, because their screenshots cannot be used, or their scripted "
                "solution takes more than max_steps=%d steps: %s",
                len(left_out),
                len(self.tasks),
                self.collector.max_steps,
                first_of(left_out),
            )
            with atomically(self.store.root / LEFT_OUT) as partial:
                partial.write_text(json.dumps({"sampling": fingerprint, "tasks": left_out}), encoding="utf-8")
        return made

    def _kept(self) -> list[Trajectory]:
        """Return the demonstrations of all tasks that an earlier run has played, without screenshots."""
        kept, fingerprint = self.store.read("demonstration", 0), self._fingerprint()
        if any(each.sampling != fingerprint for each in kept):
            log.info("%s holds demonstrations of other tasks or settings: collecting new ones", self.store.root)
            return []
        count = Counter(map(_place, kept))
        return [each for each in kept if count[_place(each)] == self.per_task]

    def _fingerprint(self) -> str:
        """Return a digest of what the demonstrations depend on."""
        tasks, how = [(task.id, dict(task.config)) for task in self.tasks], self.collector
        sizes = (self.per_task, how.max_steps, how.family, *how.image_limits)
        limits = (how.grammar, *sizes, how.success_threshold, how.seed)
        return hashlib.sha256(repr((tasks, how.demonstrator, limits)).encode()).hexdigest()


def _place(demonstration: Trajectory) -> int:
    """Return the place of a demonstration's task among the tasks."""
    return int(demonstration.id.split("/")[1])


def corpus(demonstrations: Sequence[Trajectory], prompt: Prompt, max_pixels: int, seed: int) -> list[str]:
    """Return every text that a tokenizer for these demonstrations should know, and clicks all over the screen."""
    rng = random.Random(derive_seed(seed, "corpus"))
    side = int(max_pixels**0.5 * 1.5)
    write = GRAMMARS[prompt.grammar].render
    clicks = [write(Click(rng.randrange(side), rng.randrange(side))) for _ in range(3000)]
    responses = [step.response for demonstration in demonstrations for step in demonstration.steps]
    instructions = sorted({demonstration.instruction for demonstration in demonstrations})
    return [*instructions * 4, *responses, *clicks, *[write(Finished())] * 50, prompt.system]


def with_click_jitter(
    demonstration: Trajectory, grammar: ActionGrammar, spread: tuple[float, float], rng: random.Random
) -> Trajectory:
    """Return a demonstration whose clicks are moved a little: their texts, that is, and not what came of them.

    A script clicks the very middle of a target. To a small policy a coordinate is a token without neighbours, and each
    of a hundred tokens has to be learned from the few targets that lie there. Once clicks are spread around a target,
    coordinates that are near each other mean nearly the same. The spread is the standard deviation of the move, across
    and down, in the units in which the model names points.
    """

    def jitter(x: float, y: float) -> tuple[float, float]:
        return max(0, round(rng.gauss(x, spread[0]))), max(0, round(rng.gauss(y, spread[1])))

    steps: list[Step] = []
    for step in demonstration.steps:
        response = grammar.parse(step.response)
        action, *others = response.actions
        text = step.response
        if not others and isinstance(action, Click) and (action.button, action.count) == ("left", 1):
            text = grammar.render(action.moved(jitter), response.thought)
        steps.append(replace(step, response=text))
    return replace(demonstration, steps=tuple(steps))
