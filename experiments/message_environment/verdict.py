"""An environment whose desktop is a blank sheet: a program holds the task, its conversation and its rubric.

The program plays its own environment against the endpoint, and types what the episode is worth: that is the reward. So
it is the judge, and must be code of yours: nothing that the model says may reach `act`.
"""

import io
from contextlib import suppress

from PIL import Image

from arpo.agent.actions import Action, TypeText
from arpo.envs.protocol import StepResult
from arpo.errors import EnvError
from arpo.types import Observation, Task


def _sheet() -> Observation:
    written = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(written, "PNG")
    return Observation(written.getvalue(), 64, 64)


class Sheet:
    """Satisfies `DesktopEnv`; the last number that was typed is the task reward, and 0 where there is none."""

    def __init__(self) -> None:
        self._reward: float | None = None
        """None: no episode has begun."""
        self._closed = False

    def reset(self, task: Task) -> Observation:
        """Begin an episode."""
        if self._closed:
            raise EnvError("reset", "the sheet is closed; build a new one")
        self._reward = 0.0
        return _sheet()

    def step(self, action: Action) -> StepResult:
        """Note what is typed."""
        self.evaluate()
        if isinstance(action, TypeText):
            with suppress(ValueError):
                self._reward = min(1.0, max(0.0, float(action.text)))
        return StepResult(_sheet())

    def evaluate(self) -> float:
        """Return the number."""
        if self._reward is None:
            raise EnvError("step", "there is no episode: reset first")
        return self._reward

    def close(self) -> None:
        """Forget the episode; may be called twice."""
        self._reward, self._closed = None, True


def numbered_tasks(count: int, start: int = 0) -> list[Task]:
    """Return tasks of which the program knows the rest by their number."""
    return [Task(id=f"message/{number}", instruction=str(number)) for number in range(start, start + count)]
