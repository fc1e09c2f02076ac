import pytest
import torch

from arpo.algorithms.rewards import group_rewards, is_success, is_worth_replaying, trajectory_reward
from arpo.types import Group, Outcome, Task, Trajectory


def trajectory(task_reward: float, format_reward: float = 0.0) -> Trajectory:
    return Trajectory(
        id="0/0/0",
        task_id="t",
        domain="d",
        instruction="",
        seed=0,
        steps=(),
        outcome=Outcome.FINISHED,
        task_reward=task_reward,
        format_reward=format_reward,
    )


@pytest.mark.parametrize(
    ("task_reward", "format_reward", "format_weight", "expected"),
    [
        (1.0, 0.0, 1.0, 1.0),
        (0.0, -1.0, 1.0, -1.0),  # the paper: 0 + 1 · (-1)
        (0.0, -1.0, 0.5, -0.5),  # the official code: 0 + 0.5 · (-1)
        (1.0, -1.0, 0.5, 0.5),  # solved, and then a response that did not parse
        (0.25, 0.0, 0.5, 0.25),  # a partial score of the checker
    ],
)
def test_the_reward_is_the_task_reward_plus_the_weighted_format_reward(
    task_reward: float, format_reward: float, format_weight: float, expected: float
) -> None:
    assert trajectory_reward(trajectory(task_reward, format_reward), format_weight=format_weight) == expected


def test_the_rewards_of_a_group_keep_its_order() -> None:
    group = Group(Task("t", "do"), (trajectory(0.0, -1.0), trajectory(1.0), trajectory(0.0)))
    torch.testing.assert_close(group_rewards(group, format_weight=0.5), torch.tensor([-0.5, 1.0, 0.0]))


@pytest.mark.parametrize(
    ("task_reward", "threshold", "expected"),
    [(0.5, 0.5, False), (0.51, 0.5, True), (0.1, 0.1, False), (0.2, 0.1, True), (0.0, 0.0, False), (1.0, 0.5, True)],
)
def test_a_success_lies_above_the_threshold_and_not_on_it(
    task_reward: float, threshold: float, expected: bool
) -> None:
    assert is_success(trajectory(task_reward, format_reward=-1.0), threshold=threshold) is expected


@pytest.mark.parametrize(
    ("task_reward", "format_reward", "format_weight", "threshold", "expected"),
    [
        (1.0, 0.0, 1.0, 0.5, True),
        (0.5, 0.0, 1.0, 0.5, False),  # no success
        (1.0, -1.0, 1.0, 0.5, False),  # the paper: 1 - 1 = 0
        (1.0, -1.0, 0.5, 0.1, True),  # the official code: 1 - 0.5 = 0.5 > 0.1
        (0.4, -1.0, 0.5, 0.1, False),  # the official code: 0.4 - 0.5 = -0.1, a success of negative reward
    ],
)
def test_a_success_is_worth_replaying_when_its_whole_reward_is_above_the_threshold(
    task_reward: float, format_reward: float, format_weight: float, threshold: float, expected: bool
) -> None:
    member = trajectory(task_reward, format_reward)
    assert is_worth_replaying(member, threshold=threshold, format_weight=format_weight) is expected
