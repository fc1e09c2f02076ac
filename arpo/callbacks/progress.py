"""The moments at which a run reports its progress; the words and the screen are in `arpo.display`."""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import lightning as L
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.callbacks.evaluation import Evaluation
from arpo.display.live import LiveLine, live_line
from arpo.display.progress_line import Line, State, clock, iteration_line, step_line, training_line
from arpo.display.summary import RunSummary, places
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.types import RolloutBatch

log = logging.getLogger(__name__)


class LineCallback(L.Callback):
    """A callback that shows a line until the run ends, however it ends."""

    def __init__(self, console: Console | None = None) -> None:
        """Take a terminal, and start the run's clock.

        Args:
            console: The terminal, standard error by default; if it is no terminal, lines go to the log.
        """
        self.console = console or Console(stderr=True)
        self._started = time.monotonic()
        self._live: LiveLine | None = None

    def _show(self, line: Callable[[], Line]) -> None:
        self._live = live_line(self.console, line)
        self._live.start()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._stop()


class Progress(LineCallback, RolloutCallback):
    """The progress line of a training, and the card that sums the run up at its end.

    The line shows iteration, episodes, success, replay, speed and time to go.

    It stands after evaluation in the list of callbacks, so that an iteration's line comes when all of it is known.
    """

    _state: State
    _summary: RunSummary | None = None
    _evaluations: Sequence[Evaluation] = ()

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        endless = trainer.max_epochs in (None, -1)
        state = self._state = State(iterations=None if endless else trainer.max_epochs)
        if not trainer.is_global_zero or stage != "fit":
            return
        self._evaluations = [each for each in trainer.callbacks if isinstance(each, Evaluation)]  # type: ignore[attr-defined]
        evaluated = self._evaluations[0].directory if self._evaluations else None
        self._summary = RunSummary(trainer.default_root_dir, evaluated, started=self._started)
        runtime = runtime_of(trainer)
        # before weights go to the engine for the first time
        self._show(lambda: training_line(state, runtime.status()))

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._state.iteration = min(trainer.current_epoch + 1, self._state.iterations or sys.maxsize)
        self._count_evaluations(done=trainer.current_epoch)
        if self._summary is not None:
            self._summary.started_working()
            self._summary.goes_on(trainer.current_epoch)

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._count_evaluations(done=trainer.current_epoch)  # the untrained policy's has just ended
        self._state.iteration = trainer.current_epoch + 1
        self._state.started = time.monotonic()
        self._state.phase = "starting"

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        """Count what was collected; a replayed trajectory is no success of this policy."""
        threshold = runtime_of(trainer).settings.success_threshold
        collected = [
            is_success(trajectory, threshold=threshold)
            for group in batch.groups
            for position, trajectory in enumerate(group.trajectories)
            if position not in group.injected
        ]
        self._state.successes.append(fmean(collected) if collected else 0.0)
        self._state.replayed = sum(len(group.injected) for group in batch.groups)
        self._state.phase = "update and weight sync"

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self._state.durations.append(now - self._state.started)
        self._state.started = now
        self._state.phase = "closing"

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._summary is None or self._live is None:
            return
        state = self._state
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        duration = state.durations[-1] + time.monotonic() - state.started
        state.replay_size = metrics.get("replay/size")
        self._summary.add(metrics)
        self._count_evaluations(done=state.iteration)
        state.started = time.monotonic()
        self._live.say(iteration_line(state, duration))
        state.phase = "saving"

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()
        if self._summary is None:
            return
        self._summary.add_evaluations(sum(sum(each.durations) for each in self._evaluations))
        if self.console.is_terminal:
            card = Table.grid(padding=(0, 2))
            for row in self._summary.rows():
                card.add_row(*map(Text, row))
            self.console.print(Panel(card, title="ARPO", expand=False))
        else:
            for name, value in self._summary.rows():
                log.info("%s: %s", name, value)

    def _count_evaluations(self, *, done: int) -> None:
        """Note how many evaluations come after `done` iterations, and how long the last ones took."""
        last = self._state.iterations
        coming = range(min(done + 1, last or 0), (last or 0) + 1)  # the last one's follows its checkpoint
        self._state.evaluations_left = max(
            (sum(each.is_due(iteration, last) for iteration in coming) for each in self._evaluations), default=0
        )
        ended = [each.durations[-1] for each in self._evaluations if each.durations]
        self._state.evaluation_s = sum(ended) if ended else None


class StepProgress(LineCallback):
    """The progress line of a training on data that exists already, such as a warm start: step, loss and time to go."""

    _step = 0
    _steps: int | None = None
    _loss: float | None = None

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        batches = trainer.estimated_stepping_batches
        self._steps = int(batches) if batches != float("inf") else None
        self._started = time.monotonic()
        self._show(lambda: step_line(self._step, self._steps, self._loss, time.monotonic() - self._started))

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        self._step = trainer.global_step
        if self._live is not None and "train/loss" in trainer.callback_metrics:
            self._loss = float(trainer.callback_metrics["train/loss"])

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._live is not None:
            self._stop()
            loss = "" if self._loss is None else f", loss {self._loss:.3f}"
            log.info("learned %d steps in %s%s", self._step, clock(time.monotonic() - self._started), loss)
            for name, place in places(Path(trainer.default_root_dir)):
                log.info("%s: %s", name, place)
