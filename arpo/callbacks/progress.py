"""The progress of a run for a person: a line while it goes on, a line an iteration, and a card at the end."""

import json
import logging
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import lightning as L
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.callbacks.evaluation import Evaluation
from arpo.evaluation.intervals import t_interval
from arpo.host.files import whole_lines
from arpo.host.terminal import Line, LiveLine, live_line
from arpo.rollout.episode import Meter
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.types import RolloutBatch

log = logging.getLogger(__name__)

WINDOW = 10
"""Iterations of the moving mean and of the estimate of the time to go."""
MOST_AVERAGED = 5
"""Iterations at each end of a run whose success is averaged: one alone is noise."""


class LineCallback(L.Callback):
    """A callback that shows a line until the run ends: on a terminal, standard error by default, or in the log."""

    def __init__(self, console: Console | None = None) -> None:
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
    """The progress line of a training, and the card at its end; in the list of callbacks it follows evaluation."""

    _earlier = 0
    """Iterations of the checkpoint that the run goes on from."""
    _start_s = 0.0

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self.iteration = 1
        """The running one, from 1; one thread writes it and the others below, another one reads them."""
        self.iterations: int | None = None
        self.phase: Literal["starting", "update and weight sync", "closing", "saving"] = "starting"
        """The work of the trainer while no episode runs."""
        self.begun = self._started
        """The begin of the running iteration, or, after its update, of what follows."""
        self.successes: deque[float] = deque(maxlen=WINDOW)
        self.durations: deque[float] = deque(maxlen=WINDOW)
        """Seconds of the last iterations, evaluations left out."""
        self.replayed = 0
        self.replay_size: float | None = None

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self.iterations = None if trainer.max_epochs in (None, -1) else trainer.max_epochs
        if not trainer.is_global_zero or stage != "fit":
            return
        runtime = runtime_of(trainer)
        # before weights go to the engine for the first time
        self._show(lambda: self.line(runtime.status()))

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.iteration = min(trainer.current_epoch + 1, self.iterations or sys.maxsize)
        self._earlier, self._start_s = trainer.current_epoch, time.monotonic() - self._started

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.iteration, self.begun, self.phase = trainer.current_epoch + 1, time.monotonic(), "starting"

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
        self.successes.append(fmean(collected) if collected else 0.0)
        self.replayed = sum(len(group.injected) for group in batch.groups)
        self.phase = "update and weight sync"

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self.durations.append(now - self.begun)
        self.begun, self.phase = now, "closing"

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._live is None:
            return
        size = trainer.callback_metrics.get("replay/size")
        self.replay_size = None if size is None else float(size)
        duration_s = self.durations[-1] + time.monotonic() - self.begun
        self.begun = time.monotonic()
        self._live.say(self.iteration_line(duration_s))
        self.phase = "saving"

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._live is None:
            return
        self._stop()
        evaluations = [each for each in trainer.callbacks if isinstance(each, Evaluation)]  # type: ignore[attr-defined]
        rows = card_rows(
            Path(trainer.default_root_dir),
            evaluations[0].directory if evaluations else None,
            earlier=self._earlier,
            wall_s=time.monotonic() - self._started,
            start_s=self._start_s,
            evaluation_s=sum(sum(each.durations) for each in evaluations),
        )
        if self.console.is_terminal:
            card = Table.grid(padding=(0, 2))
            for row in rows:
                card.add_row(*map(Text, row))
            self.console.print(Panel(card, title="ARPO", expand=False))
        else:
            for name, value in rows:
                log.info("%s: %s", name, value)

    def line(self, rollout: Meter) -> Line:
        """Return the line of the running iteration."""
        # During an update, episodes of a later iteration may run.
        waits = self.phase != "update and weight sync"
        running = waits and rollout.total > 0 and rollout.episodes_ended < rollout.total
        parts = [f"iteration {self.iteration}/{self.iterations or '?'}"]
        if running:
            parts += episode_counts("rollout" if rollout.name == "train" else f"evaluation {rollout.name}", rollout)
        else:
            parts.append(self.phase)
        if len(self.successes) > 1:
            parts.append(self._mean_success())
        parts += self._time_to_go() + self._replay()
        if running:
            parts += speed(rollout)
        done = float(self.iteration - (self.phase == "starting"))
        if self.phase == "starting" and running and rollout.name == "train":
            done += rollout.episodes_ended / rollout.total
        return Line(parts, done / self.iterations if self.iterations else None)

    def iteration_line(self, duration_s: float) -> str:
        """Return the line that a log keeps of an iteration."""
        parts = [f"iteration {self.iteration}/{self.iterations or '?'}"]
        if self.successes:
            mean = f", {self._mean_success()}" if len(self.successes) > 1 else ""
            parts.append(f"success {100 * self.successes[-1]:.0f} %{mean}")
        return " · ".join([*parts, *self._replay(), f"{duration_s:.1f} s", *self._time_to_go()])

    def _mean_success(self) -> str:
        return f"last {len(self.successes)}: {100 * fmean(self.successes):.0f} %"

    def _replay(self) -> list[str]:
        return [] if self.replay_size is None else [f"replay {self.replay_size:.0f}, {self.replayed} injected"]

    def _time_to_go(self) -> list[str]:
        """Estimate the time that the iterations still take; none before the first one, or when it should be over."""
        if not self.durations or self.iterations is None:
            return []
        iterations_left = self.iterations - self.iteration + (self.phase in ("starting", "update and weight sync"))
        left_s = iterations_left * fmean(self.durations) - (time.monotonic() - self.begun)
        return [f"{format_duration(left_s)} to go"] if left_s >= 0.5 else []


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
        self._show(self.line)

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
            log.info("learned %d steps in %s%s", self._step, format_duration(time.monotonic() - self._started), loss)
            for name, place in places(Path(trainer.default_root_dir)):
                log.info("%s: %s", name, place)

    def line(self) -> Line:
        """Return the line of the running step."""
        step, steps = self._step, self._steps
        parts = [f"step {step}/{steps or '?'}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.3f}")
        if steps and step:
            parts.append(f"{format_duration((time.monotonic() - self._started) / step * (steps - step))} to go")
        return Line(parts, step / steps if steps else None)


def evaluation_line(rollout: Meter) -> Line:
    """Return the line of episodes that run outside of a training."""
    if not rollout.total:
        return Line(["starting"])
    parts = episode_counts(f"evaluation {rollout.name}", rollout)
    if rollout.episodes_ended:
        left = rollout.total - rollout.episodes_ended
        parts.append(f"{format_duration(rollout.elapsed_s / rollout.episodes_ended * left)} to go")
    return Line([*parts, *speed(rollout)], rollout.episodes_ended / rollout.total)


def episode_counts(name: str, rollout: Meter) -> list[str]:
    """Return the parts of a line that count episodes."""
    parts = [f"{name} {rollout.episodes_ended}/{rollout.total}"]
    if rollout.episodes_ended:
        parts.append(f"success {100 * rollout.successes / rollout.episodes_ended:.0f} %")
    return parts


def speed(rollout: Meter) -> list[str]:
    """Return the parts of a line that say how fast episodes run."""
    parts = []
    if rollout.elapsed_s > 0:
        parts.append(f"{rollout.steps / rollout.elapsed_s:.1f} steps/s")
    if rollout.dropped:
        parts.append(f"{rollout.dropped} episode{'s' * (rollout.dropped != 1)} lost")
    return parts


def format_duration(seconds: float) -> str:
    """Return a duration as people read it: `0:07`, `12:34`, `3:05:00`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def places(run: Path, *, begins: bool = False) -> list[tuple[str, str]]:
    """Return pairs of something to see of a run, and its folder or the command that shows it, live at its begin."""
    shown = [("results", str(run)), ("curves", shlex.join(["tensorboard", "--logdir", str(run)]))]
    if begins or (run / "trajectories").exists():
        view = ["python", "-m", "arpo", "view", str(run), *["--serve"] * begins]
        shown.append(("episodes", shlex.join(view)))
    if len(list(run.parent.glob("*/metrics.jsonl"))) > 1:
        shown.append(("beside other runs", f"python -m arpo compare {shlex.quote(f'{run.parent}/*')}"))
    return shown


def changes(evaluations: Path | None) -> Iterator[tuple[str, str]]:
    """Yield success in the first evaluation of a folder and in the last, by list, with Student's interval of tasks."""
    found = [] if evaluations is None else sorted(evaluations.glob("iteration_*.json"))
    if not found:
        return
    first, last = (json.loads(path.read_text(encoding="utf-8")) for path in (found[0], found[-1]))
    began, ended = (int(path.stem.removeprefix("iteration_")) for path in (found[0], found[-1]))
    for name, result in last.items():
        if began == ended or name not in first:
            rate, when = result["overall"]["success_rate"], f"after iteration {ended}" if ended else "before training"
            yield name, f"{100 * rate:.1f} % of {len(result['tasks'])} tasks {when}"
        else:
            yield name, _change(first[name], result) + f", from iteration {began} to {ended}" * (began > 0)


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return success before and after on the tasks that both have, and the difference."""
    rates = [{task["name"]: task["success_rate"] for task in result["tasks"]} for result in (before, after)]
    both = [name for name in rates[1] if name in rates[0]]
    if not both:
        return "no task was judged both at first and at last"
    first, last = (100 * fmean(each[name] for name in both) for each in rates)
    of = f"{len(both)} tasks" if len(both) == len(rates[0]) == len(rates[1]) else f"the {len(both)} tasks of both"
    gains = [rates[1][name] - rates[0][name] for name in both]
    if not any(gains):
        gain = "no task changed"
    elif len(set(gains)) == 1:  # which has no interval
        gain = t_interval(gains[:1]).points()
    else:
        gain = f"{t_interval(gains).points()}, 95 % over its tasks"
    return f"{first:.1f} → {last:.1f} % of {of}, {gain}"


def card_rows(
    run: Path, evaluations: Path | None, *, earlier: int, wall_s: float, start_s: float, evaluation_s: float
) -> list[tuple[str, str]]:
    """Return the card at the end of a run as pairs of a name and a text, from the run's metrics.jsonl.

    Iterations up to the checkpoint that it went on from are `earlier`, whose time is not counted.
    """
    lines = [json.loads(line) for line in whole_lines(run / "metrics.jsonl")]
    rows = [(f"success, {name}", change) for name, change in changes(evaluations)]
    success = [line["rollout/success_rate"] for line in lines if line.get("rollout/success_rate") is not None]
    if len(success) > 1:
        share = min(MOST_AVERAGED, len(success) // 2)
        begin, end = (100 * fmean(part) for part in (success[:share], success[-share:]))
        of = f", means of {share} iterations each" if share > 1 else ""
        rows.append(("success, rollouts", f"{begin:.1f} → {end:.1f} %{of}"))
    if injected := [line["replay/injected"] for line in lines if "replay/injected" in line]:
        total = f"{sum(injected):.0f} past successes injected"
        rows.append(("replay", f"{total}, in {sum(count > 0 for count in injected)} of {len(injected)} iterations"))
    timed = [line for line in lines if line["step"] > earlier]
    wait_s, update_s, sync_s, env_s, generate_s = (
        sum(line.get(f"time/{name}") or 0.0 for line in timed)
        for name in ("wait", "update", "sync", "env", "generate")
    )
    # Rollouts may go on during an update; the trainer's wait for them is divided by what their episodes waited for.
    environment_s = wait_s * env_s / ((env_s + generate_s) or 1.0)
    split = {
        "start": start_s,
        "environment": environment_s,
        "generation": wait_s - environment_s,
        "update": update_s,
        "sync": sync_s,
        "evaluation": evaluation_s,
    }
    split["rest"] = max(0.0, wall_s - sum(split.values()))
    shares = ", ".join(f"{name} {100 * part_s / max(wall_s, 1e-9):.0f} %" for name, part_s in split.items())
    name = f"wall time since iteration {earlier}" if earlier else "wall time"
    return [*rows, (name, f"{format_duration(wall_s)}, of which {shares}"), *places(run)]
