"""The words of the progress line of a training, an evaluation and a warm start."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from arpo.rollout.meter import Meter

WINDOW = 10
"""The number of iterations of the moving mean and of the estimate of what is left."""

Phase = Literal["starting", "update and weight sync", "closing", "saving"]


def clock(seconds: float) -> str:
    """Return a duration as people read it: `0:07`, `12:34`, `3:05:00`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


@dataclass(frozen=True, slots=True)
class Line:
    """The words and the bar of one moment."""

    parts: Sequence[str]
    """The most important first: what does not fit a terminal is cut at the end."""
    share: float | None = None
    """The part of the whole that is done, in [0, 1]; None where nobody knows."""

    @property
    def text(self) -> str:
        """The line of a log."""
        return " · ".join(self.parts)

    def table(self) -> Table:
        """Return the line of a terminal: a bar, then the words."""
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True, width=10)
        row.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # it gives way, not the bar
        total = None if self.share is None else 1.0
        row.add_row(ProgressBar(total=total, completed=self.share or 0.0, width=10), Text(self.text))
        return row


@dataclass(slots=True)
class State:
    """The state of a training beside that of its rollout; one thread writes it, another one reads it."""

    iteration: int = 1
    """The running one, from 1."""
    iterations: int | None = None
    phase: Phase = "starting"
    """The work of the trainer while no episode runs."""
    started: float = field(default_factory=time.monotonic)
    """The begin of the running iteration, or, after its update, of its evaluation."""
    successes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Success rates of the last iterations."""
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Seconds of the last iterations, evaluations left out."""
    evaluations_left: int = 0
    """Evaluations until the end of the run, the running one among them."""
    evaluation_s: float | None = None
    """Seconds of the last evaluation; None before the first."""
    replayed: int = 0
    replay_size: float | None = None

    def to_go(self) -> str | None:
        """Return how long the run still takes, if all goes on as before.

        None before the first iteration has ended, and when what should be over by now still goes on.
        """
        if not self.durations or self.iterations is None:
            return None
        iterations_left = self.iterations - self.iteration + (self.phase in ("starting", "update and weight sync"))
        left = iterations_left * fmean(self.durations) + self.evaluations_left * (self.evaluation_s or 0.0)
        left -= time.monotonic() - self.started
        unknown = " and an evaluation" if self.evaluations_left and self.evaluation_s is None else ""
        return f"{clock(left)}{unknown} to go" if left >= 0.5 else None


def training_line(state: State, rollout: Meter) -> Line:
    """Return the line of a running iteration."""
    running = _is_running(state, rollout)
    said = [f"iteration {state.iteration}/{state.iterations or '?'}"]
    name = "rollout" if rollout.name == "train" else f"evaluation {rollout.name}"
    said += _episodes(name, rollout) if running else [state.phase]
    if len(state.successes) > 1:
        said.append(_recent(state))
    if (to_go := state.to_go()) is not None:
        said.append(to_go)
    if state.replay_size is not None:
        said.append(_replay(state.replay_size, state.replayed))
    if running:
        said += _speed(rollout)
    done = state.iteration - 1 + _share(state, rollout)
    return Line(said, None if not state.iterations else max(0.0, done) / state.iterations)


def iteration_line(state: State, duration_s: float) -> str:
    """Return the line that a log keeps of an iteration."""
    said = [f"iteration {state.iteration}/{state.iterations or '?'}"]
    if state.successes:
        mean = f", {_recent(state)}" if len(state.successes) > 1 else ""
        said.append(f"success {100 * state.successes[-1]:.0f} %{mean}")
    if state.replay_size is not None:
        said.append(_replay(state.replay_size, state.replayed))
    said.append(f"{duration_s:.1f} s")
    if (to_go := state.to_go()) is not None:
        said.append(to_go)
    return " · ".join(said)


def evaluation_line(rollout: Meter) -> Line:
    """Return the line of episodes that run outside of a training."""
    if not rollout.total:
        return Line(["starting"])
    said = _episodes(f"evaluation {rollout.name}", rollout)
    if rollout.episodes_ended:
        left = rollout.total - rollout.episodes_ended
        said.append(f"{clock(rollout.elapsed_s / rollout.episodes_ended * left)} to go")
    return Line([*said, *_speed(rollout)], rollout.episodes_ended / rollout.total)


def step_line(step: int, steps: int | None, loss: float | None, elapsed_s: float) -> Line:
    """Return the line of a warm start, `elapsed_s` seconds after its first step began."""
    said = [f"step {step}/{steps or '?'}"]
    if loss is not None:
        said.append(f"loss {loss:.3f}")
    if steps and step:
        said.append(f"{clock(elapsed_s / step * (steps - step))} to go")
    return Line(said, step / steps if steps else None)


def _episodes(name: str, rollout: Meter) -> list[str]:
    said = [f"{name} {rollout.episodes_ended}/{rollout.total}"]
    if rollout.episodes_ended:
        said.append(f"success {100 * rollout.successes / rollout.episodes_ended:.0f} %")
    return said


def _speed(rollout: Meter) -> list[str]:
    said = []
    if rollout.elapsed_s > 0:
        said.append(f"{rollout.steps / rollout.elapsed_s:.1f} steps/s")
    if rollout.dropped:
        said.append(f"{rollout.dropped} episode{'s' * (rollout.dropped != 1)} lost")
    return said


def _replay(size: float, injected: int) -> str:
    return f"replay {size:.0f}, {injected} injected"


def _recent(state: State) -> str:
    """Return the moving mean of the success rate."""
    return f"last {len(state.successes)}: {100 * fmean(state.successes):.0f} %"


def _is_running(state: State, rollout: Meter) -> bool:
    """Return whether the trainer waits for episodes; during an update, those of a later iteration may run too."""
    waits = state.phase != "update and weight sync"
    return waits and rollout.total > 0 and rollout.episodes_ended < rollout.total


def _share(state: State, rollout: Meter) -> float:
    """Return the part of the running iteration that is done, counting its rollout alone."""
    if state.phase != "starting":
        return 1.0
    running = rollout.name == "train" and _is_running(state, rollout)
    return rollout.episodes_ended / rollout.total if running else 0.0
