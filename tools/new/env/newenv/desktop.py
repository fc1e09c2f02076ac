"""The desktop of newenv: one square, anywhere on the screen, that is to be clicked."""

import io
import random
from collections.abc import Iterator

from PIL import Image, ImageDraw

from arpo.agent.actions import Action, Click, Finished  # all classes of actions are there
from arpo.envs.protocol import StepResult
from arpo.errors import EnvError
from arpo.types import Observation, Task

SIDE = 24
"""Pixels of the square."""


class NewEnv:
    """A `DesktopEnv` of ARPO; its `solve` makes it a `SolvableEnv` too, for demonstrations."""

    def __init__(self, width: int = 112, height: int = 84) -> None:
        self._width, self._height = width, height
        self._square: tuple[int, int] | None = None  # its upper left corner, while there is an episode
        self._clicked = self._over = self._closed = False

    def reset(self, task: Task) -> Observation:
        """Set up a task and show the first screen."""
        if self._closed:
            raise EnvError("reset", "the environment is closed; build a new one")
        generator = random.Random(task.config["seed"])
        self._square = generator.randrange(self._width - SIDE), generator.randrange(self._height - SIDE)
        self._clicked = self._over = False
        return self._look()

    def step(self, action: Action) -> StepResult:
        """Perform an action, in pixels of the screen. What means nothing here does nothing, and is no error."""
        left, top = self._running("step")
        match action:
            case Click(x, y, "left", 1) if x is not None and y is not None:
                self._clicked = left <= x < left + SIDE and top <= y < top + SIDE
                self._over = True
            case Finished():
                pass  # the episode ends; an environment that checks what the agent says at its end notes it here
        return StepResult(self._look(), terminated=self._over)

    def evaluate(self) -> float:
        """Return the reward of the episode, in [0, 1]."""
        self._running("evaluate")
        return float(self._clicked)

    def close(self) -> None:
        """Free all that it has; it may be called twice."""
        self._square = None
        self._closed = True

    def solve(self) -> Iterator[Action]:
        """Yield the actions that solve the task."""
        left, top = self._running("solve")
        yield Click(left + SIDE // 2, top + SIDE // 2)

    def _running(self, call: str) -> tuple[int, int]:
        if self._square is None:
            raise EnvError(call, f"{call} was called without an episode; reset the environment first")
        return self._square

    def _look(self) -> Observation:
        left, top = self._running("screenshot")
        image = Image.new("RGB", (self._width, self._height), "white")
        corners = left, top, left + SIDE - 1, top + SIDE - 1
        ImageDraw.Draw(image).rectangle(corners, "green" if self._clicked else "red")
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        return Observation(buffer.getvalue(), self._width, self._height)
