"""Methods with a critic: PPO, UI-TARS-2 and DigiRL, by numbers computed by hand."""

import math
from dataclasses import replace

import pytest
import torch

from arpo.algorithms.losses import MinibatchAverage
from arpo.algorithms.rewards import generalized_advantages, relative
from arpo.methods.digirl import DigiRL
from arpo.methods.method import TokenTerms
from arpo.methods.ppo import PPO
from arpo.methods.ui_tars2 import UITars2
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
    advantages, returns = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    terms = TokenTerms(logprobs, logprobs.detach(), advantages, mask, None, values, returns)
    found = PPO().loss(terms)
    # At ratio 1: -2 and 1; (.5 - 1)² / 2 = .125 and (-1 - 1)² / 2 = 2
    assert found.losses.tolist() == [[-1.875, 3.0]]
    assert found.measured["value_error"].tolist() == [[0.125, 2.0]]
    MinibatchAverage("token", sequences=1.0, tokens=2.0)(found.losses, mask).backward()
    assert logprobs.grad.tolist() == [[-1.0, 0.5]]
    assert values.grad.tolist() == [[-0.25, -1.0]]


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


def logits(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities).logit()


def test_golden_credit_of_a_success_and_a_failure(make_group):
    # Both learn with kept = 1. The success has steps of tokens 1 | 2, 3 | 4, V .5, .9, .2 (token 3 is no first one),
    # r 0, 0, 1 and G .25, .5, 1: A = .9 - .5 - .05 + .25 = .6; .2 - .9 - .05 + .5 = -.25; 0 - .2 - .05 + 1 + 1 = 1.75
    # The failure has V .3, .36, .4: A = .36 - .3 - .05 = .01; .4 - .36 - .05 = -.01; 0 - .4 - .05 = -.45
    group = make_group(trajectory("abc", 1.0, lengths=(1, 2, 1)), trajectory("abc", 0.0))
    values = [[logits(0.5, 0.9, 0.77, 0.2), logits(0.3, 0.36, 0.4)]]
    ((good, bad),) = DigiRL(kept=1.0).credits([group], said(values))
    assert good.advantages.tolist() == pytest.approx([0.6, 0.0, 0.0, 1.0])
    assert good.returns.tolist() == [1.0] * 4
    assert bad.advantages.tolist() == pytest.approx([0.01, 0.0, 0.0], abs=1e-6)
    assert bad.returns.tolist() == [0.0] * 3


def test_the_critic_is_taught_whether_the_return_from_a_step_on_is_above_0(make_group):
    lost = trajectory("ab", 0.0, lengths=(1, 2))
    lost = replace(lost, steps=(replace(lost.steps[0], reward=0.4), lost.steps[1]))
    parsed_badly = replace(trajectory("ab", 1.0), format_reward=-1.0)  # of a success 1 - 1 = 0 is left
    partial = trajectory("a", 0.1)
    values = [[torch.zeros(3), torch.zeros(2), torch.zeros(1)]]
    (credits,) = DigiRL().credits([make_group(lost, parsed_badly, partial)], said(values))
    assert [credit.returns.tolist() for credit in credits] == [[1.0, 0.0, 0.0], [0.0, 0.0], [1.0]]


def test_only_the_tenth_that_surprises_most_learns_over_all_groups_of_the_batch(make_group):
    # Twenty successes of a step: reward less value is 1 - V, the quantile .9 between places 17 and 18 of 0-19.
    expected = [(place + 1) / 25 for place in range(20)]
    groups = [make_group(*(trajectory("a", 1.0) for _ in range(10))) for _ in range(2)]
    values = [[logits(value) for value in expected[:10]], [logits(value) for value in expected[10:]]]
    credits = DigiRL().credits(groups, said(values))
    learning = [bool(credit.advantages.any()) for row in credits for credit in row]
    assert learning == [True] * 2 + [False] * 18


def test_the_value_that_is_compared_is_that_before_the_very_first_token(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(2, 1)), trajectory("ab", 1.0, lengths=(2, 1)))
    values = [[logits(0.6, 0.1, 0.1), logits(0.4, 0.9, 0.9)]]
    ((expected, surprising),) = DigiRL(kept=0.4).credits([group], said(values))
    assert not expected.advantages.any()
    assert surprising.advantages.all()


def test_ties_learn_together_as_all_successes_do_while_the_critic_knows_nothing_and_so_does_an_episode_alone(
    make_group,
):
    group = make_group(*(trajectory("a", float(member < 4)) for member in range(10)))
    (credits,) = DigiRL().credits([group], said([[torch.zeros(1)] * 10]))
    assert [credit.advantages.tolist() for credit in credits] == [[1.0]] * 4 + [[0.0]] * 6
    ((credit,),) = DigiRL().credits([make_group(trajectory("a", 1.0))], said([[torch.zeros(1)]]))
    assert credit.advantages.tolist() == [1.0]
    assert DigiRL().allows_single_episode_groups


def test_where_all_failed_a_step_learns_that_leads_to_a_better_state_and_no_last_one(make_group):
    group = make_group(trajectory("ab", 0.0), trajectory("ab", 0.0))
    ((one, other),) = DigiRL(kept=0.1).credits([group], said([[logits(0.2, 0.6), logits(0.4, 0.9)]]))
    assert one.advantages.tolist() == pytest.approx([0.35, 0.0])  # .6 - .2 - .05: of the two the less expected one
    assert other.advantages.tolist() == [0.0, 0.0]
    ((flat, same),) = DigiRL().credits([group], said([[torch.zeros(2)] * 2]))
    assert not flat.advantages.any()
    assert not same.advantages.any()


def test_the_loss_is_that_of_imitation_where_the_advantage_is_positive_and_a_cross_entropy():
    values = torch.tensor([[0.0, 2.0, 0.0]], requires_grad=True)
    logprobs = torch.tensor([[-1.0, -2.0, -torch.inf]], requires_grad=True)
    mask = torch.tensor([[True, True, True]])
    terms = TokenTerms(
        logprobs,
        torch.full((1, 3), -9.0),  # a ratio far outside of every clip
        torch.tensor([[0.01, 0.8, 0.0]]),
        mask,
        torch.tensor([[0.5, 1.0, 1.0]]),
        values,
        torch.tensor([[1.0, 0.0, 1.0]]),
    )
    found = DigiRL().loss(terms)
    errors = [math.log(2), math.log(1 + math.exp(2)), math.log(2)]  # -log σ(0), -log(1 - σ(2)), -log σ(0)
    assert found.losses.tolist()[0] == pytest.approx([0.5 + errors[0], 2.0 + errors[1], errors[2]])
    assert found.measured["value_error"].tolist()[0] == pytest.approx(errors)
    assert found.metrics is None
    MinibatchAverage("token", sequences=1.0, tokens=3.0)(found.losses, mask).backward()
    assert logprobs.grad.tolist()[0] == pytest.approx([-0.5 / 3, -1 / 3, 0.0])
    assert values.grad.tolist()[0] == pytest.approx([-0.5 / 3, (1 / (1 + math.exp(-2))) / 3, -0.5 / 3])
