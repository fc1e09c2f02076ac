"""The card at the end of a run: what changed, what was replayed, where the time went, and the places to look at."""

import json
import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.display.progress_line import clock
from arpo.evaluation.intervals import t_interval

MEASURED = ("wait", "update", "sync", "env", "generate")
"""Read from the metrics `time/<name>`, which every iteration logs. Rollouts may go on during an update; the trainer's
wait for them does not."""
MOST_AVERAGED = 5
"""Iterations at each end of a run whose success is averaged: one alone is noise."""


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


def changes(evaluations: Path | None) -> Iterator[tuple[str, str]]:
    """Yield what the first evaluation and the last one say: success before and after, for each list of tasks.

    The 95 % interval is Student's over the tasks that both have; it knows nothing of other seeds of the run.

    Args:
        evaluations: The folder of `iteration_<n>.json`; None where nothing is evaluated.
    """
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
    return f"{first:.1f} → {last:.1f} % of {of}, {_gain([rates[1][name] - rates[0][name] for name in both])}"


def _gain(gains: Sequence[float]) -> str:
    if not any(gains):
        return "no task changed"
    if len(set(gains)) == 1:  # which has no interval
        return t_interval(gains[:1]).points()
    return f"{t_interval(gains).points()}, 95 % over its tasks"


class RunSummary:
    """The numbers of the card, collected iteration by iteration."""

    def __init__(
        self, directory: str | Path, evaluations: str | Path | None = None, *, started: float | None = None
    ) -> None:
        """Start the clock.

        Args:
            directory: The folder of the run's results.
            evaluations: That of its evaluations, if it evaluates.
            started: The time on `time.monotonic` at which the run began; now by default.
        """
        self.directory = Path(directory)
        self.evaluations = None if evaluations is None else Path(evaluations)
        self._started = time.monotonic() if started is None else started
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._success: list[float] = []
        self._injected: list[float] = []
        self._earlier = 0

    def goes_on(self, iterations: int) -> None:
        """Count the iterations of earlier starts, as many as the checkpoint has that the run goes on from."""
        self._earlier, path = iterations, self.directory / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if iterations and path.exists() else []
        for metrics in (json.loads(line) for line in lines if line.endswith("\n")):  # the last one may be torn
            if metrics["step"] <= iterations:
                self._add_success(metrics)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics at the end of an iteration."""
        for name in MEASURED:
            self._seconds[name] += metrics.get(f"time/{name}", 0.0)
        self._add_success(metrics)

    def _add_success(self, metrics: Mapping[str, float]) -> None:
        for name, values in (("rollout/success_rate", self._success), ("replay/injected", self._injected)):
            if name in metrics:
                values.append(metrics[name])

    def started_working(self) -> None:
        """Count the time so far as that of starting engine and environments."""
        self._seconds["start"] = time.monotonic() - self._started

    def add_evaluations(self, seconds: float) -> None:
        """Add the time of all evaluations."""
        self._seconds["evaluation"] += seconds

    def rows(self) -> list[tuple[str, str]]:
        """Return the card as pairs of a name and what there is to say about it."""
        wall = time.monotonic() - self._started
        rows = [(f"success, {name}", change) for name, change in changes(self.evaluations)]
        if len(self._success) > 1:
            share = min(MOST_AVERAGED, len(self._success) // 2)
            begin, end = (100 * fmean(part) for part in (self._success[:share], self._success[-share:]))
            of = f", means of {share} iterations each" if share > 1 else ""
            rows.append(("success, rollouts", f"{begin:.1f} → {end:.1f} %{of}"))
        if self._injected:
            number, iterations = sum(count > 0 for count in self._injected), len(self._injected)
            said = f"{sum(self._injected):.0f} past successes injected, in {number} of {iterations} iterations"
            rows.append(("replay", said))
        whole = f"wall time since iteration {self._earlier}" if self._earlier else "wall time"
        rows.append((whole, f"{clock(wall)}, of which {self._split(wall)}"))
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
