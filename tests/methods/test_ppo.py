"""PPO's credit and loss, against numbers computed by hand."""

import pytest
import torch

from arpo.algorithms.losses import MinibatchAverage
from arpo.errors import ConfigError
from arpo.methods.method import TokenTerms
from arpo.methods.ppo import PPO
from tests.methods.conftest import said, trajectory


def test_golden_credit(make_group):
    # γ = 1, λ = .5. The success has tokens 1 | 2, 3 with V .5, .4, .8 and reward 1 at its end:
    # δ = .4 - .5 = -.1; .8 - .4 = .4; 1 - .8 = .2, so A = .2; .4 + .5 · .2 = .5; -.1 + .5 · .5 = .15
    # The failure has one token with V .25: A = -.25
    # Of the four .15, .5, .2, -.25 the mean is .15 and the deviation sqrt((.35² + .05² + .4²) / 4) = .2669270
    group = make_group(trajectory("ab", 1.0, lengths=(1, 2)), trajectory("a", 0.0))
    values = [[torch.tensor([0.5, 0.4, 0.8]), torch.tensor([0.25])]]
    ((good, bad),) = PPO(gae_lambda=0.5).credits([group], said(values))
    assert good.returns.tolist() == pytest.approx([0.65, 0.9, 1.0])
    assert bad.returns.tolist() == pytest.approx([0.0])
    assert good.advantages.tolist() == pytest.approx([0.0, 1.311219, 0.187317], abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([-1.498536], abs=1e-5)


def test_every_trajectory_of_every_group_has_its_own_credit(make_group):
    groups = [make_group(trajectory("a", 1.0)), make_group(trajectory("a", 0.0), trajectory("ab", 0.5))]
    values = [[torch.zeros(len(each.steps)) for each in group.trajectories] for group in groups]
    credits = PPO(gae_lambda=1.0).credits(groups, said(values))
    assert [[each.returns.tolist() for each in row] for row in credits] == [[[1.0]], [[0.0], [0.5, 0.5]]]


def test_the_loss_is_that_of_the_policy_and_half_the_squared_error_of_the_critic():
    values = torch.tensor([[0.5, -1.0]], requires_grad=True)
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    terms = TokenTerms(
        logprobs, logprobs.detach(), torch.tensor([[2.0, -1.0]]), mask, None, values, torch.tensor([[1.0, 1.0]])
    )
    found = PPO().loss(terms)
    # At ratio 1: -2 and 1; (.5 - 1)² / 2 = .125 and (-1 - 1)² / 2 = 2
    assert found.losses.tolist() == [[-1.875, 3.0]]
    assert found.measured["value_error"].tolist() == [[0.125, 2.0]]
    MinibatchAverage("token", sequences=1.0, tokens=2.0)(found.losses, mask).backward()
    assert logprobs.grad.tolist() == [[-1.0, 0.5]]
    assert values.grad.tolist() == [[-0.25, -1.0]]


@pytest.mark.parametrize("name", ["discount", "gae_lambda"])
def test_an_impossible_number_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        PPO(**{name: 1.5})
