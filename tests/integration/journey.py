"""A run that is taken from stage to stage: started, killed or stopped in some way, and looked at."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arpo.types import Trajectory
from tests.integration.runs import Run

DYING = "tests.integration.killers"


@dataclass
class Left:
    """What was there when a stage had ended."""

    code: int
    said: str
    checkpoints: list[str]
    partial: list[int]
    """Sizes of unfinished checkpoints."""
    iterations: int
    """Lines of metrics.jsonl beside that of iteration 0."""
    episodes: dict[str, Trajectory]
    """Episodes on disk, by id."""

    @property
    def rolled_out(self) -> int:
        """Episodes on disk of the iteration that was not completed."""
        return sum(id.startswith(f"{self.iterations}/") for id in self.episodes)


class Journey:
    """The run, taken from stage to stage; a stage that was reached stays reached."""

    stages: Mapping[str, Callable[[], None]]
    """What begins each stage, in their order; subclasses have it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._left: dict[str, Left] = {}

    def reach(self, stage: str) -> Left:
        """Go on until this stage has ended, and return what it left."""
        for name, go in self.stages.items():
            if name not in self._left:
                go()
                code = self.run.wait()
                self._left[name] = Left(
                    code=code,
                    said=self.run.said,
                    checkpoints=[path.name for path in self.run.checkpoints],
                    partial=[path.stat().st_size for path in self.run.unfinished],
                    iterations=len(self.run.metrics) - 1,
                    episodes={trajectory.id: trajectory for trajectory in self.run.trajectories(range(30))},
                )
            if name == stage:
                return self._left[name]
        raise KeyError(stage)

    def start(self, *overrides: str) -> None:
        """Go on from the last checkpoint."""
        self.run.start("resume=auto", *overrides)

    def die(self, engine: str, version: int) -> None:
        """Be killed while the engine rolls out a version, or loads the one behind it."""
        self.start_with("EngineThatDies", during=engine, version=version)

    def start_with(self, engine: str, *, during: str, version: int) -> None:
        """Go on with an engine of `killers`."""
        options = {"during": during, "version": version, "episodes": self.run.episodes(version)}
        added = (f"+engine.{name}={value}" for name, value in options.items())
        self.start(f"engine._target_={DYING}.{engine}", *added)

    def die_in_update(self) -> None:
        """Be killed in the second iteration of the process."""
        # two steps an iteration: the third is the first of the second iteration of this process
        self.start(f"+callbacks.killer._target_={DYING}.DieInUpdate", "+callbacks.killer.steps=3")

    def die_by(self, callback: str, iteration: int) -> None:
        """Be killed by a callback at the end of an iteration."""
        self.start(f"+callbacks.killer._target_={DYING}.{callback}", f"+callbacks.killer.iteration={iteration}")

    def stop(self, iteration: int, sign: signal.Signals) -> None:
        """Be asked to end while an iteration is rolled out."""
        self.start()
        self.run.wait_for_rollout(iteration)
        self.run.send(sign)
