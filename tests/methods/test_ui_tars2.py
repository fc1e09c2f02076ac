"""UI-TARS-2's decoupled, length-adaptive GAE."""

import pytest
import torch

from arpo.algorithms.returns import generalized_advantages, relative
from arpo.errors import ConfigError
from arpo.methods.ui_tars2 import UITars2
from tests.methods.conftest import said, trajectory


@pytest.mark.parametrize(("tokens", "expected"), [(100, 0.8), (500, 0.96), (1000, 0.98), (10, 0.0)])
def test_golden_lambda_by_length(tokens, expected):
    assert UITars2().policy_lambda(trajectory("a", 1.0, lengths=(tokens,))) == pytest.approx(expected, abs=1e-6)


def test_the_policy_has_the_lambda_of_its_length_and_the_critic_the_whole_return(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(2, 2)), trajectory("a", 0.0, lengths=(8,)))
    values = [torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.linspace(0, 0.7, 8)]
    ((good, bad),) = UITars2(length_weight=0.5).credits([group], said([values]))
    assert good.returns.tolist() == pytest.approx([1.0] * 4)
    assert bad.returns.tolist() == pytest.approx([0.0] * 8, abs=1e-6)
    earned = [torch.tensor([0.0, 0.0, 0.0, 1.0]), torch.zeros(8)]
    lambdas = (0.5, 0.75)  # 1 - 1 / (0.5 * 4) and 1 - 1 / (0.5 * 8)
    raw = [
        generalized_advantages(reward, value, discount=1.0, gae_lambda=decay)
        for reward, value, decay in zip(earned, values, lambdas, strict=True)
    ]
    expected = relative(torch.cat(raw), std="population")
    assert torch.cat([good.advantages, bad.advantages]).tolist() == pytest.approx(expected.tolist())


def test_an_impossible_number_is_refused():
    with pytest.raises(ConfigError, match="length_weight must be"):
        UITars2(length_weight=0.0)
