"""Rewards, returns and advantages, by numbers computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.rewards import (
    Deviation,
    Estimator,
    Spread,
    discounted_returns,
    explained_variance,
    generalized_advantages,
    group_advantages,
    group_rewards,
    is_success,
    is_worth_replaying,
    relative,
    trajectory_reward,
)
from arpo.types import Group, Outcome, Task, Trajectory

ONE_OF_EIGHT = [1.0] + [0.0] * 7
ESTIMATORS: list[Estimator] = ["grpo", "dr_grpo", "rloo", "pass_at_k"]


def trajectory(task_reward: float, format_reward: float = 0.0) -> Trajectory:
    return Trajectory("0/0/0", "t", "d", "", 0, (), Outcome.FINISHED, task_reward, format_reward)


@pytest.mark.parametrize(
    ("task_reward", "format_reward", "format_weight", "threshold", "expected"),
    [
        (1.0, 0.0, 1.0, 0.5, 1.0),
        (0.51, -1.0, 1.0, 0.5, -0.49),  # a success by the task alone
        (0.5, 0.0, 1.0, 0.5, 0.5),  # on the threshold, and no success
        (0.1, 0.0, 1.0, 0.1, 0.1),
        (0.0, 0.0, 1.0, 0.0, 0.0),
        (0.0, -1.0, 1.0, 0.5, -1.0),  # the paper: 0 + 1 · (-1)
        (0.0, -1.0, 0.5, 0.5, -0.5),  # the official code: 0 + 0.5 · (-1)
        (1.0, -1.0, 1.0, 0.5, 0.0),  # solved, and then a response that did not parse: 1 - 1
        (1.0, -1.0, 0.5, 0.1, 0.5),  # the same with the official weight: worth replaying
        (0.4, -1.0, 0.5, 0.1, -0.1),  # 0.4 - 0.5: a success of negative reward
    ],
)
def test_the_task_reward_makes_a_success_and_with_the_format_reward_one_worth_replaying(
    task_reward: float, format_reward: float, format_weight: float, threshold: float, expected: float
) -> None:
    member = trajectory(task_reward, format_reward)
    assert trajectory_reward(member, format_weight=format_weight) == pytest.approx(expected)
    assert is_success(member, threshold=threshold) is (task_reward > threshold)
    assert is_worth_replaying(member, threshold=threshold, format_weight=format_weight) is (expected > threshold)


def test_the_rewards_of_a_group_keep_its_order() -> None:
    group = Group(Task("t", "do"), (trajectory(0.0, -1.0), trajectory(1.0), trajectory(0.0)))
    torch.testing.assert_close(group_rewards(group, format_weight=0.5), torch.tensor([-0.5, 1.0, 0.0]))


def test_golden_returns() -> None:
    # 2 + .5 · 0 = 2; 0 + .5 · 2 = 1; 1 + .5 · 1 = 1.5
    assert discounted_returns(torch.tensor([1.0, 0.0, 2.0]), discount=0.5).tolist() == [1.5, 1.0, 2.0]


def test_golden_advantages_over_a_critic() -> None:
    # γ .9, λ .5: δ = 0 + .9 · .4 - .5 = -.14; 0 + .9 · .8 - .4 = .32; 1 - .8 = .2
    # A = .2; .32 + .45 · .2 = .41; -.14 + .45 · .41 = .0445
    found = generalized_advantages(
        torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.4, 0.8]), discount=0.9, gae_lambda=0.5
    )
    torch.testing.assert_close(found, torch.tensor([0.0445, 0.41, 0.2]), atol=1e-6, rtol=0)


def test_without_decay_an_advantage_is_the_return_less_the_value() -> None:
    rewards, values = torch.tensor([0.5, 0.0, 1.0]), torch.tensor([0.3, -0.2, 0.9])
    found = generalized_advantages(rewards, values, discount=0.9, gae_lambda=1.0)
    torch.testing.assert_close(found, discounted_returns(rewards, discount=0.9) - values)


@pytest.mark.parametrize(
    ("std", "expected"),
    [("none", [1.0, 0.0, -1.0]), ("sample", [1.0, 0.0, -1.0]), ("population", [1.5**0.5, 0.0, -(1.5**0.5)])],
)
def test_numbers_are_relative_to_their_mean(std: Spread, expected: list[float]) -> None:
    # 3, 2, 1: deviation sqrt(2 / 2) of a sample, sqrt(2 / 3) of all there is
    torch.testing.assert_close(
        relative(torch.tensor([3.0, 2.0, 1.0]), std=std), torch.tensor(expected), atol=3e-6, rtol=0
    )


@pytest.mark.parametrize(
    ("values", "explained"),
    [
        ([0.0, 1.0, 1.0, 2.0], 1.0),
        ([5.0, 6.0, 6.0, 7.0], 1.0),  # it is the variance that is explained, and not the mean
        ([0.7, 0.7, 0.7, 0.7], 0.0),
        ([0.0, 0.5, 0.5, 1.0], 0.75),  # errors 0, .5, .5, 1 have a quarter of the variance
        ([2.0, 1.0, 1.0, 0.0], -3.0),
    ],
)
def test_golden_explained_variance(values: list[float], explained: float) -> None:
    found = explained_variance(torch.tensor(values), torch.tensor([0.0, 1.0, 1.0, 2.0]))
    assert found == pytest.approx(explained, abs=1e-6)


@pytest.mark.parametrize("returns", [[0.3], [0.1, 0.1, 0.1]])
def test_of_equal_returns_there_is_nothing_to_explain(returns: list[float]) -> None:
    assert explained_variance(torch.rand(len(returns)), torch.tensor(returns)) is None


def advantages(rewards: list[float], estimator: Estimator = "grpo", std: Deviation = "sample") -> torch.Tensor:
    return group_advantages(torch.tensor(rewards), estimator=estimator, std=std)


@pytest.mark.parametrize(
    ("rewards", "estimator", "std", "expected"),
    [
        # μ = 1/8, σ_sample = sqrt(7/8² · 8 / 7) = sqrt(1/8) = 0.3535534: 0.875 / σ, -0.125 / σ
        (ONE_OF_EIGHT, "grpo", "sample", [2.4748666] + [-0.3535524] * 7),
        # σ_population = sqrt(1/8 · 7/8) = 0.3307189
        (ONE_OF_EIGHT, "grpo", "population", [2.6457433] + [-0.3779633] * 7),
        (ONE_OF_EIGHT, "dr_grpo", "sample", [0.875] + [-0.125] * 7),
        # 1 - 0 and 0 - 1/7
        (ONE_OF_EIGHT, "rloo", "sample", [1.0] + [-0.1428571] * 7),
        ([1.0, 0.0, 0.5, 0.25], "grpo", "sample", [1.3174620, -1.0246927, 0.1463847, -0.4391540]),
        ([1.0, 0.0, 0.5, 0.25], "rloo", "sample", [0.75, -0.5833333, 0.0833334, -0.25]),
        ([1.0, 0.0, 0.5, 0.25], "pass_at_k", "sample", [0.5, 0.0, 0.0, 0.0]),
        # Half of a group: ±0.5 / sqrt(8/7 · 1/4) = ±0.9354
        ([1.0] * 4 + [0.0] * 4, "grpo", "sample", [0.9354126] * 4 + [-0.9354126] * 4),
    ],
)
def test_golden_values(rewards: list[float], estimator: Estimator, std: Deviation, expected: list[float]) -> None:
    torch.testing.assert_close(advantages(rewards, estimator, std), torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("std", "expected"),
    [
        # Over steps [1, 1, 0 · 6]: μ = 1/4, σ_population = sqrt(3/16) = .4330127: .75 / σ, -.25 / σ
        ("population", [1.7320468, -0.5773489, -0.5773489]),
        # σ_sample = sqrt(8/7 · 3/16) = .4629100
        ("sample", [1.6201816, -0.5400605, -0.5400605]),
    ],
)
def test_golden_values_of_darts_advantage_over_steps(std: Deviation, expected: list[float]) -> None:
    """One success of two steps, failures of four and two: every step of a trajectory has its advantage."""
    rewards = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    values = group_advantages(rewards, estimator="step_grpo", std=std, steps=torch.tensor([2, 4, 2]))
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("reward", [0.0, 1.0, -0.5, 0.1, 1 / 3])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_equal_rewards_give_exactly_zero(estimator: Estimator, reward: float, size: int) -> None:
    # The mean of seven times 0.1 is not 0.1 in float32: without the rule the advantages were noise / epsilon.
    assert advantages([reward] * size, estimator).tolist() == [0.0] * size


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_format_error_in_an_all_failed_group_is_a_signal(estimator: Estimator) -> None:
    # Rewards 0 · 7 and -0.5: not degenerate. pass@k looks at the best alone, and the best are equal.
    values = advantages([0.0] * 7 + [-0.5], estimator)
    assert (values[-1].item() < 0) is (estimator != "pass_at_k")


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=12))
def test_the_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    for estimator in ("grpo", "dr_grpo", "rloo"):
        assert advantages(rewards, estimator).sum().item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "arguments", "message"),
    [
        ([], {}, "without trajectories"),
        ([0.0, float("nan")], {}, "must be finite"),
        ([0.0, 1.0], {"estimator": "step_grpo"}, "give steps"),
    ],
)
def test_bad_arguments_are_refused(rewards: list[float], arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.tensor(rewards), **arguments)
