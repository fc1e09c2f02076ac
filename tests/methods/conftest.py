"""Groups without a model: what a method sees of them is rewards, screens and the lengths of responses."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from arpo.methods.method import TokenScores
from arpo.types import Group, Outcome, Step, Task, Trajectory


def trajectory(screens: Sequence[str], task_reward: float, *, lengths: Sequence[int] = ()) -> Trajectory:
    """A trajectory that saw these screens; responses have one token, or as many as `lengths` says."""
    steps = tuple(
        Step(
            screenshot=screen,
            width=1,
            height=1,
            prompt_ids=(1,),
            response_ids=(2,) * length,
            sampler_logprobs=(0.0,) * length,
            policy_version=0,
            response="",
        )
        for screen, length in zip(screens, lengths or [1] * len(screens), strict=True)
    )
    return Trajectory("0/0/0", "task", "", "", 0, steps, Outcome.FINISHED, task_reward, 0.0)


def said(values: Sequence[Sequence[Tensor]]) -> list[list[TokenScores]]:
    """The values of a critic for each token of each trajectory of each group, beside log-probabilities."""
    return [[TokenScores(torch.zeros(len(row)), row) for row in rows] for rows in values]


@pytest.fixture
def make_group() -> Callable[..., Group]:
    def make(*trajectories: Trajectory) -> Group:
        return Group(Task("task", ""), trajectories)

    return make
