"""Recorded trajectories of an expert as a desktop: semi-online rollouts (UI-S1, arXiv 2509.11543)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from arpo.agent.actions import Action
from arpo.agent.matching import StepScore, compare
from arpo.agent.prompt import thought_of
from arpo.agent.ui_tars import parse_action
from arpo.bounds import NotNegative, NotNegativeInt, checked
from arpo.envs.protocol import KnownDesktop, Patch, StepResult
from arpo.errors import ActionParseError, EnvError, TaskFormatError
from arpo.types import Observation, Task

Thought = Literal["free", "recorded"]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A screen of an expert's trajectory, and the expert's answer."""

    screen: Path
    width: int
    height: int
    action: Action
    response: str


@checked
class RecordedDesktop(KnownDesktop):
    """A `DesktopEnv` and `SolvableEnv` that shows what an expert saw, whatever the policy does.

    Where the policy's action is the expert's, the next screen of the recording follows. Where it is another one, the
    expert's is patched in: the next screen follows as well, and the policy goes on as if it had given that answer.
    After `patches` of these the next wrong action ends the episode; otherwise it ends with the recording.

    The task reward is semi-online performance (section 4.1 there): the mean of progress, the share of the recorded
    steps that were answered right, and of success, 1 where all of them were. So it is above 0.5 for a success alone,
    and its mean over an evaluation with `patches` 0 is that of the paper. A response of several actions is compared
    action by action, and earns the sum of their scores; `rollout.settings.max_actions=1` makes it a format error.
    Thoughts that the policy itself would have had for a patch (on-policy patches) are not made.

    Args:
        score: What an action is worth, as the reward of its step.
        patches: Wrong actions that are corrected in an episode; 0 judges the policy as it is.
        tolerance: How far from the expert's a point may be in x and in y, in pixels of the screen.
        thought: Whether a patch is the expert's action alone (`free`), or has its thought, too (`recorded`).
    """

    example_tasks = "recorded"
    steps_are_rewarded = True

    def __init__(
        self, score: StepScore, *, patches: NotNegativeInt = 2, tolerance: NotNegative = 8.0, thought: Thought = "free"
    ) -> None:
        self._score = score
        self._patches = patches
        self._tolerance = tolerance
        self._thought = thought
        self._steps: list[RecordedStep] = []
        self._last = Path()
        self._place = self._matched = self._patched = 0
        self._over = self._closed = False

    def reset(self, task: Task) -> Observation:
        """Show the first screen of a recording."""
        if self._closed:
            raise EnvError("reset", "the environment is closed; build a new one")
        self._place = self._matched = self._patched = 0
        self._over = False
        self._steps, self._last = read_recording(task)
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """Compare an action with the expert's, and show what followed that one."""
        steps = self._running("step")
        if self._over:
            raise EnvError("step", "the episode has terminated; reset the environment first")
        expert = steps[self._place]
        match = compare(action, expert.action, tolerance=self._tolerance)
        thought = thought_of(expert.response) if self._thought == "recorded" else ""
        patch = None if match.exact else Patch(expert.action, thought)
        self._matched += match.exact
        if match.exact or self._patched < self._patches:
            self._patched += not match.exact
            self._place += 1
            self._over = self._place == len(steps)
        else:
            self._over = True
        return StepResult(self._observe(), terminated=self._over, reward=self._score.of(match), patch=patch)

    def evaluate(self) -> float:
        """Return the mean of progress and success."""
        number = len(self._running("evaluate"))
        return (self._matched / number + float(self._matched == number)) / 2

    def close(self) -> None:
        """Forget the recording, and accept no other."""
        self._steps = []
        self._closed = True

    def solve(self) -> Iterator[Action]:
        """Yield the actions of the expert."""
        for step in self._running("step"):
            yield step.action

    def _running(self, call: str) -> list[RecordedStep]:
        if not self._steps:
            raise EnvError(call, f"{call} was called before reset")
        return self._steps

    def _observe(self) -> Observation:
        at = self._steps[min(self._place, len(self._steps) - 1)]
        screen = self._last if self._place == len(self._steps) else at.screen
        try:
            return Observation(screen.read_bytes(), at.width, at.height)
        except OSError as error:
            raise EnvError("screenshot", f"the recording has lost a screenshot: {error}") from error


def read_recording(task: Task) -> tuple[list[RecordedStep], Path]:
    """Return the steps of a task's recording and the screen after the last one."""
    try:
        steps = [
            RecordedStep(
                Path(step["screen"]), step["width"], step["height"], parse_action(step["action"]), step["response"]
            )
            for step in task.config["steps"]
        ]
        last = Path(task.config["last_screen"])
    except (KeyError, TypeError, ActionParseError) as error:
        raise TaskFormatError(
            f"task {task.id!r} has no recording to replay ({type(error).__name__}: {error}): choose tasks=recorded"
        ) from error
    if not steps:
        raise TaskFormatError(f"task {task.id!r} has a recording without steps")
    return steps, last
