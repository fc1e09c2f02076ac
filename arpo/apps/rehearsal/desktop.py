"""The desktop of a rehearsal, the fake one with a score that is drawn: alone here, because workers import it."""

import random

from typing_extensions import override

from arpo.agent.actions import Action
from arpo.envs.fake import FakeDesktop
from arpo.envs.protocol import StepResult

SUCCESS_RATE = 0.3
"""The share of episodes that succeed: some in most groups, so that there is something to learn, and none in a few."""


class DrawnDesktop(FakeDesktop):
    """A desktop in memory that no action ends, and whose verdict is luck, as a new policy solves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._luck = random.Random()

    @override
    def step(self, action: Action) -> StepResult:
        observation = super().step(action).observation
        self._state.over = False
        return StepResult(observation)

    @override
    def evaluate(self) -> float:
        super().evaluate()
        return float(self._luck.random() < SUCCESS_RATE)
