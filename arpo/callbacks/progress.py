"""How a run is doing, for the person in front of it: a live line in a terminal, plain lines everywhere else."""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, TextIO, cast

import lightning as L
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.display.summary import RunSummary, clock
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.meter import RolloutStatus
from arpo.rollout.runtime import RolloutRuntime
from arpo.types import RolloutBatch

log = logging.getLogger(__name__)

WINDOW = 10
"""Iterations of the moving mean and of the estimate of what is left."""
HEARTBEAT_S = 30.0
"""Seconds after which a plain log says that a long iteration is alive."""


@dataclass(slots=True)
class State:
    """What the line shows besides the rollout itself; the trainer's thread writes, the painter reads."""

    iteration: int = 0
    """The running one, from 1."""
    iterations: int | None = None
    started: float = field(default_factory=time.monotonic)
    """Of the running iteration."""
    phase: Literal["starting", "update", "closing"] = "starting"
    """What the trainer does while no episode runs."""
    successes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Success rates of the last iterations."""
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    replayed: int = 0
    replay_size: float | None = None

    def remaining_s(self) -> float | None:
        """Seconds to the end, if iterations stay as long as the last ones; None before the first has ended."""
        if not self.durations or self.iterations is None:
            return None
        left = (self.iterations - self.iteration + 1) * fmean(self.durations) - (time.monotonic() - self.started)
        return max(0.0, left)


class Progress(RolloutCallback):
    """Shows iteration, episodes, success, replay, speed and time to go, and sums the run up at its end.

    It stands after evaluation in the list of callbacks, so that an iteration's line comes when all of it is known.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Take a terminal.

        Args:
            console: Where to paint, standard error by default; where it is no terminal, lines go to the log.
        """
        self.console = console or Console(stderr=True)
        self._state = State()
        self._summary: RunSummary | None = None
        self._painter: Painter | Heartbeat | None = None
        self._mark = time.monotonic()

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        self._state = State(iteration=trainer.current_epoch + 1, iterations=trainer.max_epochs)
        self._summary = RunSummary(trainer.default_root_dir)
        runtime = runtime_of(trainer)
        self._painter = (
            Painter(self.console, self._state, runtime)
            if self.console.is_terminal
            else Heartbeat(self._state, runtime)
        )
        self._painter.start()
        self._mark = time.monotonic()

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._summary is not None and not self._state.durations:
            self._summary.add_evaluation(time.monotonic() - self._mark)  # of the untrained policy
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
        self._state.phase = "update"

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        self._mark = time.monotonic()
        self._state.phase = "closing"

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._summary is None:
            return
        state = self._state
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        duration = time.monotonic() - state.started
        state.durations.append(duration)
        state.replay_size = metrics.get("replay/size")
        self._summary.add(state.iteration, metrics)
        self._summary.add_evaluation(time.monotonic() - self._mark)
        if isinstance(self._painter, Heartbeat):
            self._painter.beat()
            log.info("%s", iteration_line(state, duration))

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()
        if self._summary is None:
            return
        if self.console.is_terminal:
            self.console.print(Panel(self._summary.table(), title="ARPO", expand=False))
        else:
            for line in self._summary.lines():
                log.info("%s", line)

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._painter is not None:
            self._painter.stop()
            self._painter = None


class Painter:
    """Repaints one line at the bottom of a terminal; log lines scroll above it."""

    def __init__(self, console: Console, state: State, runtime: RolloutRuntime) -> None:
        self._console, self._state, self._runtime = console, state, runtime
        self._live = Live(console=console, get_renderable=self._paint, refresh_per_second=4, transient=True)
        self._streams: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def start(self) -> None:
        """Paint until `stop`."""
        for handler in _terminal_handlers():
            self._streams.append((handler, handler.stream))
            handler.setStream(cast(TextIO, FileProxy(self._console, handler.stream)))
        self._live.start()

    def stop(self) -> None:
        """Give the terminal back as it was."""
        self._live.stop()
        for handler, stream in self._streams:
            handler.setStream(stream)
        self._streams.clear()

    def _paint(self) -> Table:
        return progress_line(self._state, self._runtime.status())


def _terminal_handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    """Every handler that would write across the live line; libraries have their own beside the root's."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    for logger in loggers:
        if isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                fixed = "stream" in vars(handler)  # others look sys.stderr up at every line, and rich replaces that
                if isinstance(handler, logging.StreamHandler) and fixed and handler.stream in (sys.stdout, sys.stderr):
                    yield handler


class Heartbeat:
    """Logs where a rollout stands when nothing else was logged for a while."""

    def __init__(self, state: State, runtime: RolloutRuntime, every_s: float = HEARTBEAT_S) -> None:
        self._state, self._runtime, self._every_s = state, runtime, every_s
        self._stopped = threading.Event()
        self._last = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Watch until `stop`."""
        self._thread.start()

    def beat(self) -> None:
        """Something was logged: wait anew."""
        self._last = time.monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(max(0.0, self._last + self._every_s - time.monotonic())):
            if time.monotonic() - self._last >= self._every_s:
                self.beat()
                log.info("%s", " · ".join(parts(self._state, self._runtime.status())))


def progress_line(state: State, rollout: RolloutStatus) -> Table:
    """Give the live line: a bar of the run, then everything in words; what does not fit is cut at the end."""
    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True, width=10)
    row.add_column(no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(total=state.iterations, completed=state.iteration - 1 + _share(state, rollout), width=10)
    row.add_row(bar, " · ".join(parts(state, rollout)))
    return row


def parts(state: State, rollout: RolloutStatus) -> list[str]:
    """Give what there is to say while an iteration runs, the most important first."""
    said = [f"iteration {state.iteration}/{state.iterations or '?'}"]
    running = _is_running(state, rollout)
    if running:
        name = "rollout" if rollout.name == "train" else f"evaluation {rollout.name}"
        said.append(f"{name} {rollout.episodes_done}/{rollout.episodes_total}")
        if rollout.episodes_done:
            said.append(f"success {100 * rollout.successes / rollout.episodes_done:.0f} %")
    else:
        said.append(state.phase)
    if state.successes:
        said.append(recent(state))
    remaining = state.remaining_s()
    if remaining is not None:
        said.append(f"{clock(remaining)} to go")
    if state.replay_size is not None:
        said.append(f"replay {state.replay_size:.0f}, {state.replayed} injected")
    if running and rollout.elapsed_s > 0:
        said.append(f"{rollout.steps / rollout.elapsed_s:.1f} steps/s")
    if running and rollout.dropped:
        said.append(f"{rollout.dropped} episodes lost")
    return said


def iteration_line(state: State, duration_s: float) -> str:
    """Give the line that a plain log keeps of an iteration."""
    said = [f"iteration {state.iteration}/{state.iterations or '?'}"]
    if state.successes:
        said.append(f"success {100 * state.successes[-1]:.0f} %, {recent(state)}")
    if state.replay_size is not None:
        said.append(f"replay {state.replay_size:.0f}, {state.replayed} injected")
    said.append(f"{duration_s:.1f} s")
    if state.iterations is not None and state.durations:
        said.append(f"{clock((state.iterations - state.iteration) * fmean(state.durations))} to go")
    return " · ".join(said)


def recent(state: State) -> str:
    """Give the moving mean of the success rate."""
    return f"last {len(state.successes)}: {100 * fmean(state.successes):.0f} %"


def _is_running(state: State, rollout: RolloutStatus) -> bool:
    """Whether the trainer waits for episodes; during an update, episodes of a later iteration may run too."""
    return state.phase != "update" and rollout.episodes_total > 0 and rollout.episodes_done < rollout.episodes_total


def _share(state: State, rollout: RolloutStatus) -> float:
    """How much of the running iteration is done, counting its rollout alone."""
    if state.phase != "starting":
        return 1.0
    running = rollout.name == "train" and _is_running(state, rollout)
    return rollout.episodes_done / rollout.episodes_total if running else 0.0
