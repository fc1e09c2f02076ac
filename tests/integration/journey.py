"""A run that is taken from stage to stage: started, killed or stopped in some way, and looked at."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arpo.types import Trajectory
from tests.integration.runs import Run

DYING = "tests.integration.killers"
Begin = Callable[[Run], None]
"""Starts the run from its last checkpoint, and may see to its end."""


@dataclass
class Left:
    """The traces of a stage that has ended."""

    code: int
    said: str
    checkpoints: list[str]
    partial: list[int]
    """Sizes of unfinished checkpoints."""
    iterations: int
    """Lines of metrics.jsonl beside that of iteration 0."""
    episodes: dict[str, Trajectory]
    """Episodes on disk, by id."""
    files: dict[str, tuple[int, int]]


class Journey:
    """The run, taken from stage to stage in their order; a stage that was reached stays reached."""

    def __init__(self, run: Run, stages: Mapping[str, Begin]) -> None:
        self.run, self._stages = run, stages
        self._left: dict[str, Left] = {}

    def reach(self, stage: str) -> Left:
        """Go on until this stage has ended, and return what it left."""
        for name, begin in self._stages.items():
            if name not in self._left:
                begin(self.run)
                code = self.run.wait()
                self._left[name] = Left(
                    code=code,
                    said=self.run.said,
                    checkpoints=[path.name for path in self.run.checkpoints],
                    partial=[path.stat().st_size for path in self.run.unfinished],
                    iterations=len(self.run.metrics) - 1,
                    episodes={trajectory.id: trajectory for trajectory in self.run.trajectories(range(30))},
                    files=self.run.files(),
                )
            if name == stage:
                return self._left[name]
        raise KeyError(stage)


def go_on(run: Run, *overrides: str) -> None:
    """Go on from the last checkpoint."""
    run.start("resume=auto", *overrides)


def die_in(during: str, version: int, engine: str = "EngineThatDies") -> Begin:
    """Be killed while an engine of `killers` rolls out a version, or loads the one behind it."""

    def begin(run: Run) -> None:
        options = {"during": during, "version": version, "episodes": run.episodes(version)}
        go_on(run, f"engine._target_={DYING}.{engine}", *(f"+engine.{name}={options[name]}" for name in options))

    return begin


def die_in_update(run: Run, steps: int = 3) -> None:
    """Be killed by a step of the optimizer: of two an iteration, the third is in the second of this process."""
    go_on(run, f"+callbacks.killer._target_={DYING}.DieInUpdate", f"+callbacks.killer.steps={steps}")


def die_by(callback: str, iteration: int) -> Begin:
    """Be killed by a callback at the end of an iteration."""
    options = (f"+callbacks.killer._target_={DYING}.{callback}", f"+callbacks.killer.iteration={iteration}")
    return lambda run: go_on(run, *options)


def stop(iteration: int, sign: signal.Signals) -> Begin:
    """Be asked to end while an iteration is rolled out."""

    def begin(run: Run) -> None:
        go_on(run)
        run.wait_for_rollout(iteration)
        run.send(sign)

    return begin
