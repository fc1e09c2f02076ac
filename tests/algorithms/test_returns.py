import pytest
import torch

from arpo.algorithms.returns import (
    Spread,
    discounted_returns,
    explained_variance,
    generalized_advantages,
    relative,
)
from tests.algorithms.fixture import assert_golden


def test_golden_returns() -> None:
    # 2 + .5 · 0 = 2; 0 + .5 · 2 = 1; 1 + .5 · 1 = 1.5
    assert discounted_returns(torch.tensor([1.0, 0.0, 2.0]), discount=0.5).tolist() == [1.5, 1.0, 2.0]


def test_golden_advantages_over_a_critic() -> None:
    # γ .9, λ .5: δ = 0 + .9 · .4 - .5 = -.14; 0 + .9 · .8 - .4 = .32; 1 - .8 = .2
    # A = .2; .32 + .45 · .2 = .41; -.14 + .45 · .41 = .0445
    found = generalized_advantages(
        torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.4, 0.8]), discount=0.9, gae_lambda=0.5
    )
    assert_golden(found, [0.0445, 0.41, 0.2])


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


@pytest.mark.parametrize("numbers", [[0.1], [0.1, 0.1, 0.1]])
def test_equal_numbers_are_exactly_nothing(numbers: list[float]) -> None:
    assert relative(torch.tensor(numbers), std="sample").tolist() == [0.0] * len(numbers)


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
