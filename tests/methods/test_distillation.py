"""The credit of on-policy distillation, against numbers computed by hand."""

import pytest
import torch

from arpo.errors import ConfigError
from arpo.methods.distillation import Distillation
from arpo.methods.method import TokenScores, TokenTerms
from tests.methods.conftest import trajectory


def scores(*rows: tuple[list[float], list[float]]) -> list[list[TokenScores]]:
    """What policy and teacher say of each token of one group's trajectories."""
    return [[TokenScores(torch.tensor(own), teacher=torch.tensor(teacher)) for own, teacher in rows]]


def test_golden_credit_of_each_token_alone_whatever_the_reward(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(1, 2)), trajectory("a", 0.0))
    said = scores(([-1.0, -0.5, -2.0], [-0.25, -1.5, -2.0]), ([-3.0], [-0.5]))
    ((good, bad),) = Distillation().credits([group], said)
    assert good.advantages.tolist() == [0.75, -1.0, 0.0]
    assert bad.advantages.tolist() == [2.5]  # of a failure, and of an episode alone
    assert Distillation().learns_alone
    # GRPO's advantages of 1 and 0 are 1 and -1
    ((good, bad),) = Distillation(reward_weight=0.5).credits([group], said)
    assert good.advantages.tolist() == pytest.approx([1.25, -0.5, 0.5], abs=1e-5)
    assert bad.advantages.tolist() == pytest.approx([2.0], abs=1e-5)


def test_the_divergence_is_measured_beside_the_clipped_loss():
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    old, teacher = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-0.5, -4.0]])
    advantages = teacher - old
    terms = TokenTerms(logprobs, old, advantages, torch.ones(1, 2, dtype=torch.bool), teacher=teacher)
    found = Distillation().loss(terms)
    assert found.losses.tolist() == [[-0.5, 2.0]]
    assert found.measured["kl_teacher"].tolist() == [[-0.5, 2.0]]


def test_an_impossible_weight_is_refused():
    with pytest.raises(ConfigError, match="reward_weight must be at least 0"):
        Distillation(reward_weight=-1.0)
