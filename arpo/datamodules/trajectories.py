"""Offline data: the stored episodes of a run, as batches of examples."""

import hashlib
import logging
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.utilities.types import TRAIN_DATALOADERS
from torch.utils.data import DataLoader
from typing_extensions import override

from arpo.algorithms.rewards import is_worth_replaying
from arpo.bounds import AtLeastOne, checked
from arpo.datamodules.examples import Example, Make, read_examples
from arpo.datamodules.rollouts import Batches
from arpo.errors import ConfigError
from arpo.modules.base import PolicyModule
from arpo.rollout.curation.experience import RetokenizationError, retokenize_for
from arpo.rollout.hooks import start_on_rank_zero
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.sampler import derive_seed
from arpo.rollout.storage import TrajectoryStore, store_of
from arpo.types import Outcome, Trajectory

log = logging.getLogger(__name__)


@checked
class TrajectoryDataModule(L.LightningDataModule):
    """Episodes that another run has stored, in the order in which it asked for them, as shuffled batches.

    Their records stay in memory, their screenshots on disk until a batch needs them. The batches are a function of the
    episodes and the seed, so a run that goes on sees those that it would have seen.

    Args:
        runtime: Its tokenizer, prompt, image window and context are those of the policy that learns; its engine and
            environments are for evaluations, started with the fit and closed after it.
        source: The folder of a run, or a trajectory store.
        examples: Makes examples of trajectories: a function of `arpo.datamodules.examples`.
        first: Learn from this many episodes, the earliest, whatever came of them; None takes all. Methods are compared
            at the same number.
        outcomes: Leave out episodes that ended in another way; None keeps all.
        steps: Optimizer steps of the run, shared out evenly among its iterations.
        batch_size: Examples a step.
        seed: Of the pairs and of the order.
    """

    def __init__(
        self,
        runtime: RolloutRuntime,
        source: str | Path,
        examples: Make,
        *,
        first: AtLeastOne | None = None,
        outcomes: Sequence[str] | None = None,
        steps: AtLeastOne,
        batch_size: AtLeastOne,
        seed: int = 0,
    ) -> None:
        super().__init__()
        known = [outcome.value for outcome in Outcome]
        if unknown := [outcome for outcome in outcomes or () if outcome not in known]:
            raise ConfigError(f"outcomes must be among {', '.join(known)}, got {', '.join(unknown)}")
        self.runtime = runtime
        self.store = TrajectoryStore(store_of(source))
        self._read_examples = partial(read_examples, self.store, examples, first=first, outcomes=outcomes, seed=seed)
        self.steps = steps
        self.batch_size = batch_size
        self.seed = seed
        self._examples: list[Example] = []
        self._digest = ""
        self._begun = False

    @override
    def setup(self, stage: str) -> None:
        """Read the episodes, then start what evaluates."""
        self._steps_per_iteration()
        assert self.trainer is not None
        self._examples = self.read(PolicyModule.of(self.trainer.lightning_module).least_examples)
        self._digest = hashlib.sha256(repr(self._examples).encode()).hexdigest()
        start_on_rank_zero(self.trainer, self.runtime)

    @override
    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(Batches(self.batches, self._steps_per_iteration()), batch_size=None)

    @override
    def teardown(self, stage: str) -> None:
        self._begun = False
        self.runtime.close()

    def batches(self) -> Iterator[list[Trajectory]]:
        """Yield the batches of the trainer's current iteration, with screenshots."""
        assert self.trainer is not None
        iteration, steps = self.trainer.current_epoch, self._steps_per_iteration()
        if self.trainer.global_rank == 0 and not self._begun:  # forget what a crash undid
            version = PolicyModule.of(self.trainer.lightning_module).policy_version
            self.runtime.store.truncate(iteration, version)
        self._begun = True
        number = len(self._examples)
        batches = passes(number, min(self.batch_size, number), self.seed)
        for places in islice(batches, iteration * steps, (iteration + 1) * steps):
            chosen = (trajectory for place in places for trajectory in self._examples[place])
            yield [self.store.load_screenshots(trajectory) for trajectory in chosen]

    def _steps_per_iteration(self) -> int:
        assert self.trainer is not None
        iterations = self.trainer.max_epochs
        if not iterations or iterations < 0 or self.steps % iterations:
            raise ConfigError(
                f"steps={self.steps} must be a multiple of iterations={iterations}, so that each has as many: set "
                "datamodule.steps or iterations"
            )
        return self.steps // iterations

    def read(self, least: int = 1) -> list[Example]:
        """Return the examples that the episodes make, of which `least` must differ."""
        succeeds = partial(is_worth_replaying, threshold=self.runtime.settings.success_threshold)
        return self._read_examples(succeeds, retokenize=self._retokenize, least=least)

    def _retokenize(self, episodes: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the episodes as the policy of this run would have sampled them, where it could have."""
        kept: list[Trajectory] = []
        left_out: Counter[str] = Counter()
        for episode in episodes:
            try:
                kept.append(retokenize_for(self.runtime, episode, self.store))
            except RetokenizationError as error:
                left_out[str(error)] += 1
        for reason, number in left_out.items():
            log.warning("%d episodes %s: left out", number, reason)
        return kept

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that the batches depend on."""
        iterations = None if self.trainer is None else self.trainer.max_epochs
        numbers = {"steps": self.steps, "iterations": iterations, "batch_size": self.batch_size, "seed": self.seed}
        return {"examples": self._digest} | numbers

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the run goes on with the batches that it would have seen."""
        now = self.state_dict()
        changed = [name for name, value in state_dict.items() if now[name] != value]
        if changed:
            raise ConfigError(
                f"the checkpoint was written by a run whose {' and '.join(changed)} differ, so that batches and rate "
                "would be others: resume with the same, or start a new run elsewhere with paths.output=DIR"
            )


def passes(examples: int, size: int, seed: int) -> Iterator[list[int]]:
    """Yield batches of `size` different places below `examples`, in pass after pass over all of them, without an end.

    Where a batch has the last places of one pass and the first of the next, the next pass begins with places that the
    batch does not have yet; for the rest, the order of a pass is drawn from the seed and its number.
    """
    batch: list[int] = []
    for number in count():
        order = random.Random(derive_seed(seed, "pass", number)).sample(range(examples), examples)
        first = [place for place in order if place not in batch][: size - len(batch)]
        for place in (*first, *(place for place in order if place not in first)):
            batch.append(place)
            if len(batch) == size:
                yield batch
                batch = []
