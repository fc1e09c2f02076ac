"""Offline data for the warm start: scripted solutions, with as many mistakes as one asks for."""

import hashlib
import json
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader
from typing_extensions import override

from arpo.agent.actions import Click, Finished
from arpo.agent.grammar import GRAMMARS
from arpo.agent.prompt import Prompt
from arpo.datamodules.batches import Batches
from arpo.datamodules.click_jitter import with_click_jitter
from arpo.datamodules.collecting import DemonstrationCollector
from arpo.datamodules.prefetch import PrefetchBuffer
from arpo.errors import ConfigError, check_at_least, check_share, first_of
from arpo.host.files import atomically
from arpo.models.tokenization import ChatTokenizer
from arpo.rollout.curation.retokenize import retokenize
from arpo.rollout.seeds import derive_seed
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Step, Task, Trajectory

log = logging.getLogger(__name__)


LEFT_OUT = "left_out.json"
"""The file of a collection that names the tasks without demonstrations."""
HEAD = 0.1
"""The share of the demonstrations that are there before training begins; a tokenizer is made from them."""


class DemonstrationDataModule(L.LightningDataModule):
    """Demonstrations that are collected once, kept on disk, and served shuffled, by optimizer steps.

    They may be collected while the first of them are learned from. What a batch is drawn from depends on the number of
    its step alone, and not on how fast they come: a step waits for them.

    Args:
        collector: Plays what is not there yet.
        tasks: What to demonstrate.
        directory: Where demonstrations are kept; collected again only when tasks or collector changed.
        prompt: The prompt that the policy will be trained and used with.
        make_model: Called with texts of the demonstrations when `model` does not exist yet: writes it.
        model: Directory of the checkpoint that is trained.
        per_task: Demonstrations a task.
        steps: Optimizer steps of the run.
        batch_size: Demonstrations a step.
        arrival: The share of the steps during which more and more of the demonstrations are used, task by task in
            random order, while they are collected; 0 waits for all of them.
        image_window: Screenshots that the policy will see at once; None: all. With a window, each step is a sequence.
        click_jitter: Standard deviation, in pixels of the model's image, by which a click is moved each time it is
            learned.
        tremor: The former name of `click_jitter`.
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
        arrival: float = 0.0,
        image_window: int | None = None,
        click_jitter: float = 0.0,
        tremor: float | None = None,
    ) -> None:
        super().__init__()
        check_share(arrival=arrival)
        if tremor is not None:
            log.warning("datamodule.tremor is now datamodule.click_jitter; the former name goes in the next version")
            click_jitter = tremor
        check_at_least(0, click_jitter=click_jitter)
        check_at_least(1, per_task=per_task, steps=steps, batch_size=batch_size)
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
        self._arrivals: PrefetchBuffer[Trajectory] | None = None

    @override
    def setup(self, stage: str) -> None:
        if self.trainer is None or self.trainer.world_size == 1:
            self._set_up()
            return
        # One process collects, keeps and writes; the others read what it has kept.
        if self.trainer.global_rank > 0:
            self.trainer.strategy.barrier("demonstrations")
        self._set_up().first()
        if self.trainer.global_rank == 0:
            self.trainer.strategy.barrier("demonstrations")

    def _set_up(self) -> PrefetchBuffer[Trajectory]:
        """Begin to collect, and write the model if there is none; return what arrives."""
        arrivals = self._arrivals = PrefetchBuffer(self._demonstrations(), "demonstrations")
        known = arrivals.first(self._known(0))
        if not known:
            raise ConfigError(
                f"no task can be demonstrated in max_steps={self.collector.max_steps} steps; raise max_steps"
            )
        least, most = self.collector.image_limits
        if not (self.model / "config.json").exists():
            with atomically(self.model) as partial:
                self.make_model(partial, corpus=corpus(known, self.prompt, most, self.collector.seed))
        self._chat = ChatTokenizer(self.model)
        self._chat.check_pictures(self.collector.family, least, most)
        return arrivals

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(Batches(self._batches, self.steps), batch_size=None)

    @override
    def teardown(self, stage: str) -> None:
        if self._arrivals is not None:
            self._arrivals.close()

    @override
    def on_exception(self, exception: BaseException) -> None:
        self.teardown("fit")  # Lightning leaves that out where a run fails

    def _batches(self) -> Iterator[list[Trajectory]]:
        assert self._arrivals is not None, "setup comes first"
        rng = random.Random(derive_seed(self.collector.seed, "batches"))
        told: dict[str, Trajectory] = {}
        grammar = GRAMMARS[self.prompt.grammar]
        for step in range(self.steps):
            known = self._arrivals.first(self._known(step))
            drawn = rng.sample(known, min(self.batch_size, len(known)))
            if self.click_jitter:
                spread = self._spread
                yield [self._tell(with_click_jitter(each, grammar, spread(each.steps[0]), rng)) for each in drawn]
                continue
            told |= {each.id: self._tell(each) for each in drawn if each.id not in told}
            yield [told[each.id] for each in drawn]

    def _spread(self, step: Step) -> tuple[float, float]:
        """Return the jitter of a click, across and down, in the units in which the model names points."""
        seen = self._chat.model_size(step.width, step.height)
        frame = self._chat.family.frame((step.width, step.height), seen)
        return self.click_jitter * (frame.model_width / seen[0]), self.click_jitter * (frame.model_height / seen[1])

    def _tell(self, demonstration: Trajectory) -> Trajectory:
        steps = [replace(step, response=self._chat.scripted(step.response)) for step in demonstration.steps]
        return retokenize(replace(demonstration, steps=tuple(steps)), self._chat, self.prompt, self.image_window)

    def _known(self, step: int) -> int | None:
        """Return how many demonstrations the batch of a step is drawn from at most; None for all."""
        share = max(HEAD, step / (self.arrival * self.steps)) if self.arrival else 1.0
        return math.ceil(share * len(self.tasks) * self.per_task) if share < 1 else None

    def _demonstrations(self) -> Generator[Trajectory]:
        """Yield what is kept, and then what is collected and kept from now on, in the order of the tasks."""
        kept = self._kept()
        yield from map(self.store.load_screenshots, kept)
        rewards = [demonstration.task_reward for demonstration in kept]
        played = _place(kept[-1]) + 1 if kept else 0
        if kept and self._is_whole():
            played = len(self.tasks)
        if played < len(self.tasks):
            for made in self._collected(played):
                yield from made
                rewards += [demonstration.task_reward for demonstration in made]
        if rewards:
            log.info("%d demonstrations, %.0f %% of them succeed", len(rewards), 100 * fmean(rewards))

    def _collected(self, played: int) -> Generator[list[Trajectory]]:
        """Yield the demonstrations of each task from one on, kept on disk; name the tasks that have none."""
        if played == 0:
            self.store.truncate(-1, -1)
            (self.store.root / LEFT_OUT).unlink(missing_ok=True)
        fingerprint = self._fingerprint()
        with closing(self.collector.collect(self.tasks, self.per_task, first=played)) as collected:
            for each in collected:
                made = [replace(demonstration, sampling=fingerprint) for demonstration in each]
                for demonstration in made:
                    self.store.write(demonstration)
                yield made
        places = {_place(demonstration) for demonstration in self.store.read("demonstration", 0)}
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

    def _kept(self) -> list[Trajectory]:
        """Return the demonstrations of all tasks that an earlier run has played, without screenshots."""
        kept, fingerprint = self.store.read("demonstration", 0), self._fingerprint()
        if any(demonstration.sampling != fingerprint for demonstration in kept):
            log.info("%s holds demonstrations of other tasks or settings: collecting new ones", self.store.root)
            return []
        count = Counter(map(_place, kept))
        return [demonstration for demonstration in kept if count[_place(demonstration)] == self.per_task]

    def _is_whole(self) -> bool:
        """Return whether an earlier run has played all tasks, and could not demonstrate some of them."""
        path = self.store.root / LEFT_OUT
        return path.exists() and json.loads(path.read_text(encoding="utf-8"))["sampling"] == self._fingerprint()

    def _fingerprint(self) -> str:
        """Return a digest of what the demonstrations depend on."""
        tasks = [(task.id, dict(task.config)) for task in self.tasks]
        how = self.collector
        limits = (
            how.grammar,
            self.per_task,
            how.max_steps,
            how.family,
            *how.image_limits,
            how.success_threshold,
            how.seed,
        )
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
