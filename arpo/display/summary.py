"""The card at the end of a run: its results, the share of each part in its time, and the places to look at."""

import shlex
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from arpo.display.progress_line import clock

MEASURED = ("wait", "update", "sync", "env", "generate")
"""Read from the metrics `time/<name>`, which every iteration logs. Rollouts may go on during an update; the trainer's
wait for them does not."""


def places(run: Path, *, begins: bool = False) -> list[tuple[str, str]]:
    """Return where to look at a run: pairs of what there is to see, and its folder or the command that shows it.

    Args:
        run: Its folder.
        begins: Whether it is about to play episodes, which can be followed.
    """
    shown = [("results", str(run)), ("curves", shlex.join(["tensorboard", "--logdir", str(run)]))]
    if begins or (run / "trajectories").exists():
        view = ["python", "-m", "arpo", "view", str(run), *["--serve"] * begins]
        shown.append(("episodes", shlex.join(view)))
    if len(list(run.parent.glob("*/metrics.jsonl"))) > 1:
        shown.append(("beside other runs", f"python -m arpo compare {shlex.quote(f'{run.parent}/*')}"))
    return shown


class RunSummary:
    """The numbers of the card, collected iteration by iteration."""

    def __init__(self, directory: str | Path, started: float | None = None) -> None:
        """Start the clock.

        Args:
            directory: The folder of the run's results.
            started: The time on `time.monotonic` at which the run began; now by default.
        """
        self.directory = Path(directory)
        self._started = time.monotonic() if started is None else started
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._curves: dict[str, dict[int, float]] = {}

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics at the end of an iteration."""
        for name in MEASURED:
            self._seconds[name] += metrics.get(f"time/{name}", 0.0)
        for name, value in metrics.items():
            if name.endswith("success_rate"):
                self._curves.setdefault(name, {})[iteration] = value

    def started_working(self) -> None:
        """Count the time so far as that of starting engine and environments."""
        self._seconds["start"] = time.monotonic() - self._started

    def add_evaluations(self, seconds: float) -> None:
        """Add the time of all evaluations."""
        self._seconds["evaluation"] += seconds

    def rows(self) -> list[tuple[str, str]]:
        """Return the card as pairs of a name and what there is to say about it."""
        wall = time.monotonic() - self._started
        rows = []
        for name, curve in sorted(self._curves.items()):
            best = max(curve, key=lambda iteration: curve[iteration])
            last = curve[max(curve)]
            rows.append((name, f"{100 * last:.1f} % at the end, best {100 * curve[best]:.1f} % (iteration {best})"))
        rows.append(("wall time", f"{clock(wall)}, of which {self._split(wall)}"))
        return [*rows, *places(self.directory)]

    def _split(self, wall: float) -> str:
        """Return the share of each part in the trainer's time.

        Its wait for rollouts is divided by what their episodes waited for.
        """
        episodes = self._seconds["env"] + self._seconds["generate"]
        environment = self._seconds["wait"] * (self._seconds["env"] / episodes if episodes else 0.0)
        split = {
            "start": self._seconds["start"],
            "environment": environment,
            "generation": self._seconds["wait"] - environment,
            "update": self._seconds["update"],
            "sync": self._seconds["sync"],
            "evaluation": self._seconds["evaluation"],
        }
        split["rest"] = max(0.0, wall - sum(split.values()))
        return ", ".join(f"{name} {100 * seconds / max(wall, 1e-9):.0f} %" for name, seconds in split.items())
