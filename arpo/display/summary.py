"""The card at the end of a run: what it reached, where its time went, and where to look."""

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

MEASURED = ("rollout", "update", "sync", "env", "generate")
"""Read from the metrics `time/<name>`, which every iteration logs."""


def clock(seconds: float) -> str:
    """Give a duration as people read it: `0:07`, `12:34`, `3:05:00`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


class RunSummary:
    """Collects what the card shows, iteration by iteration."""

    def __init__(self, directory: str | Path) -> None:
        """Start the clock.

        Args:
            directory: Where the results of the run are.
        """
        self.directory = Path(directory)
        self._started = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._curves: dict[str, dict[int, float]] = {}

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics at the end of an iteration."""
        for name in MEASURED:
            self._seconds[name] += metrics.get(f"time/{name}", 0.0)
        for name, value in metrics.items():
            if name.endswith("success_rate"):
                self._curves.setdefault(name, {})[iteration] = value

    def add_evaluation(self, seconds: float) -> None:
        """Take in the time of an evaluation."""
        self._seconds["evaluation"] += seconds

    def rows(self) -> list[tuple[str, str]]:
        """Give the card as pairs of what and how much."""
        wall = time.monotonic() - self._started
        rows = []
        for name, curve in sorted(self._curves.items()):
            best = max(curve, key=lambda iteration: curve[iteration])
            last = curve[max(curve)]
            rows.append((name, f"{100 * last:.1f} % at the end, best {100 * curve[best]:.1f} % (iteration {best})"))
        rows.append(("wall time", f"{clock(wall)}: {self._split(wall)}"))
        rows.append(("results", str(self.directory)))
        rows.append(("curves", f"tensorboard --logdir {self.directory}"))
        return rows

    def _split(self, wall: float) -> str:
        """Where the time went; the rollout is divided by what its episodes waited for."""
        waited = self._seconds["env"] + self._seconds["generate"]
        environment = self._seconds["rollout"] * (self._seconds["env"] / waited if waited else 0.0)
        split = {
            "environment": environment,
            "generation": self._seconds["rollout"] - environment,
            "update": self._seconds["update"],
            "sync": self._seconds["sync"],
            "evaluation": self._seconds["evaluation"],
        }
        split["rest"] = max(0.0, wall - sum(split.values()))
        return ", ".join(f"{name} {100 * seconds / max(wall, 1e-9):.0f} %" for name, seconds in split.items())

    def table(self) -> Table:
        """Give the card for a terminal."""
        table = Table.grid(padding=(0, 2))
        for name, value in self.rows():
            table.add_row(name, value)
        return table

    def lines(self) -> list[str]:
        """Give the card for a plain log."""
        return [f"{name}: {value}" for name, value in self.rows()]
