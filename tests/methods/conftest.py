"""Groups without a model: what a method sees of them is rewards, screens and the lengths of responses."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from arpo.methods.method import TokenScores
from arpo.types import Group, Outcome, Step, Task, Trajectory
from tests.exchanges import in_turn


def trajectory(screens: Sequence[str], task_reward: float, *, lengths: Sequence[int] = ()) -> Trajectory:
    """A trajectory that saw these screens; responses have one token, or as many as `lengths` says."""
    turns = [((1,), (2,) * length, (0.0,) * length) for length in lengths or [1] * len(screens)]
    record = in_turn([Step(screen, 1, 1, "") for screen in screens], *turns)
    ended = (Outcome.FINISHED, task_reward, 0.0)
    return Trajectory("0/0/0", "task", "", "", 0, record["steps"], *ended, record["exchanges"])


def said(values: Sequence[Sequence[Tensor]]) -> list[list[TokenScores]]:
    """The values of a critic for each token of each trajectory of each group, beside log-probabilities."""
    return [[TokenScores(torch.zeros(len(row)), row) for row in rows] for rows in values]


@pytest.fixture
def make_group() -> Callable[..., Group]:
    def make(*trajectories: Trajectory) -> Group:
        return Group(Task("task", ""), trajectories)

    return make
