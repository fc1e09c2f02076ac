"""GRPO, and the methods that change its rewards, its loss or its advantages, by numbers computed by hand."""

import math
from dataclasses import replace

import pytest
import torch

from arpo.methods.cispo import CISPO
from arpo.methods.distillation import Distillation
from arpo.methods.grpo import GRPO
from arpo.methods.method import TokenScores, TokenTerms
from arpo.methods.spa import ShortestPath
from tests.methods.conftest import trajectory


def test_every_token_of_a_trajectory_has_its_advantage(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(2, 1)), trajectory("a", 0.0, lengths=(4,)))
    (credits,) = GRPO(estimator="dr_grpo").credits([group])  # 1 and 0 less their mean
    assert [credit.advantages.tolist() for credit in credits] == [[0.5] * 3, [-0.5] * 4]
    assert all(credit.returns is None for credit in credits)


def test_groups_are_not_compared_with_each_other(make_group):
    good, bad = (make_group(trajectory("a", reward), trajectory("a", reward)) for reward in (1.0, 0.0))
    for credits in GRPO().credits([good, bad]):
        assert [credit.advantages.tolist() for credit in credits] == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2**0.5, -(0.5**0.5), -(0.5**0.5)]),  # mean 1/3, deviation sqrt(2)/3
        ({"std": "sample"}, [1.1546985, -0.5773493, -0.5773493]),  # sqrt(1/3)
        ({"estimator": "dr_grpo"}, [2 / 3, -1 / 3, -1 / 3]),
        ({"estimator": "dr_grpo", "format_weight": 0.5}, [2 / 3 + 1 / 6, -1 / 6, -2 / 3]),  # 1, 0 and -1/2
        ({"estimator": "step_grpo"}, [3**-0.5, -(3**0.5), 3**-0.5]),  # over steps 1, 1, 0, 1
        ({"estimator": "rloo"}, [1.0, -0.5, -0.5]),
        ({"estimator": "pass_at_k"}, [1.0, 0.0, 0.0]),
        ({"estimator": "dr_grpo", "imitation": 0.5}, [2 / 3 + 1 / 2, -1 / 3, -1 / 3]),
    ],
    ids=str,
)
def test_every_option_has_its_work_in_the_advantages(make_group, options, expected):
    members = [trajectory("ab", 1.0), trajectory("a", 0.0), trajectory("a", 0.0)]
    if "format_weight" in options:
        members[2] = replace(members[2], format_reward=-1.0)
    if options.get("estimator") == "step_grpo":
        members[2] = replace(members[2], task_reward=1.0)
    found = GRPO(**options).advantages(make_group(*members))
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_imitation_teaches_a_group_in_which_all_succeed_and_one_of_a_single_episode(make_group):
    succeeded, failed = (make_group(trajectory("a", reward), trajectory("a", reward)) for reward in (1.0, 0.0))
    assert GRPO(imitation=0.5).advantages(succeeded).tolist() == [0.5, 0.5]
    assert GRPO(imitation=0.5).advantages(failed).tolist() == [0.0, 0.0]
    assert not GRPO().allows_single_episode_groups
    assert GRPO(imitation=0.1).allows_single_episode_groups


@pytest.mark.parametrize(
    ("options", "ratios", "advantage", "losses"),
    [
        ({}, (2.0, 0.5), 1.0, [-1.3, -0.5]),  # [0.8, 1.3], and what pulls back is not clipped
        ({}, (10.0, 0.5), -1.0, [10.0, 0.8]),
        ({"dual_clip": 3.0}, (10.0, 0.5), -1.0, [3.0, 0.8]),
        ({"clip_low": 0.6, "clip_high": 1.5}, (10.0, 0.1), 1.0, [-2.5, -0.1]),
        ({"clip_low": 0.6, "clip_high": 1.5}, (2.0, 0.1), -1.0, [2.0, 0.4]),
        ({"level": "sequence"}, (1.44, 1.0), 1.0, [-1.2, -1.2]),  # the geometric mean
    ],
)
def test_every_option_has_its_work_in_the_loss(options, ratios, advantage, losses):
    advantages, mask = torch.full((1, 2), advantage), torch.ones(1, 2).bool()
    terms = TokenTerms(torch.tensor([ratios]).log(), torch.zeros(1, 2), advantages, mask)
    assert GRPO(**options).loss(terms).losses[0].tolist() == pytest.approx(losses, rel=1e-5)


def test_tokens_are_weighed_where_a_correction_is_asked_for():
    old, sampler = torch.zeros(2, 1), torch.full((2, 1), 1.0)
    mask, replayed = torch.ones(2, 1, dtype=torch.bool), torch.tensor([False, True])
    assert GRPO(correction="none").weights(old, sampler, mask, replayed) is None
    found = GRPO(correction="tis_token").weights(old, sampler, mask, replayed)
    assert found.weights.flatten().tolist() == pytest.approx([math.exp(-1), 1.0])  # a replayed success counts in full


@pytest.mark.parametrize(
    ("options", "members", "rewards"),
    [
        ({}, [(5, 1.0), (10, 1.0), (20, 1.0)], [1.0, 0.5, 0.25]),
        ({"shortening": 0.5}, [(5, 1.0), (10, 1.0), (20, 1.0)], [1.0, 0.75, 0.625]),
        ({"shortening": 0.0}, [(5, 1.0), (10, 1.0), (20, 1.0)], [1.0] * 3),
        ({}, [(1, 0.0), (2, 1.0), (4, 1.0), (1, 0.5)], [0.0, 1.0, 0.5, 0.5]),  # failures: not the shortest
        ({}, [(2, 1.0), (4, 0.75)], [1.0, 0.375]),  # a success of partial credit is shortened too
        ({}, [(2, 0.25), (4, 0.25)], [0.25, 0.25]),  # and a failure is not
        ({"success_threshold": 0.2}, [(2, 0.25), (4, 0.25)], [0.25, 0.125]),
        # 1/2 - 1/2: the format counts unshortened
        ({"format_weight": 0.5}, [(2, 1.0), (4, 1.0, -1.0)], [1.0, 0.0]),
    ],
)
def test_golden_rewards_of_successes_by_their_steps(make_group, options, members, rewards):
    made = [replace(trajectory("a" * count, reward), format_reward=sum(form)) for count, reward, *form in members]
    assert ShortestPath(**{"shortening": 1.0} | options).rewards(make_group(*made)).tolist() == rewards


def test_a_group_that_succeeds_as_a_whole_learns_to_be_short_and_one_that_fails_learns_nothing(make_group):
    whole = make_group(trajectory("a", 1.0), trajectory("aa", 1.0))
    assert ShortestPath().advantages(whole).tolist() == pytest.approx([1.0, -1.0], abs=1e-4)
    assert GRPO().advantages(whole).tolist() == [0.0, 0.0]
    failed = make_group(trajectory("a", 0.0), trajectory("aa", 0.0))
    assert ShortestPath().advantages(failed).tolist() == [0.0, 0.0]


def terms(ratios: list[float], advantages: list[float], weights: list[float] | None = None) -> TokenTerms:
    """Tokens of these ratios, all of log-probability -2, and one of padding."""
    logprobs = torch.tensor([[-2.0] * len(ratios) + [0.0]], requires_grad=True)
    old = torch.tensor([[-2.0 - math.log(ratio) for ratio in ratios] + [0.0]])
    mask = torch.tensor([[True] * len(ratios) + [False]])
    found = None if weights is None else torch.tensor([[*weights, 7.0]])
    return TokenTerms(logprobs, old, torch.tensor([[*advantages, 0.0]]), mask, found)


def test_golden_loss_and_gradient_of_tokens_below_in_and_above_the_clip_whatever_the_sign():
    # Ratios 1/2, 1, 3 become 3/4, 1, 3/2: -w A log π = 2 w A, and its slope -w A. None of them is 0.
    given = terms([0.5, 1.0, 3.0, 0.5, 3.0], [1.0, -1.0, 2.0, -2.0, -1.0])
    found = CISPO(clip_low=0.25, clip_high=0.5).loss(given)
    assert found.losses.tolist()[0] == pytest.approx([1.5, -2.0, 6.0, -3.0, -3.0, 0.0])
    found.losses.sum().backward()
    assert given.logprobs.grad.tolist()[0] == pytest.approx([-0.75, 1.0, -3.0, 1.5, 1.5, 0.0])
    averages = found.metrics.averages()
    assert averages["clip_fraction_low"] == averages["clip_fraction_high"] == 0.2  # as in GRPO
    assert averages["ratio_mean"] == pytest.approx(8 / 5)
    # There is no lower bound unless one is set, and corrections multiply.
    given = terms([0.01, 9.0], [1.0, 1.0], weights=[0.5, 2.0])
    assert CISPO().loss(given).losses.tolist()[0] == pytest.approx([0.5 * 0.01 * 2, 2 * 5 * 2, 0.0])


def test_golden_credit_of_each_token_alone_whatever_the_reward(make_group):
    group = make_group(trajectory("ab", 1.0, lengths=(1, 2)), trajectory("a", 0.0))
    rows = [([-1.0, -0.5, -2.0], [-0.25, -1.5, -2.0]), ([-3.0], [-0.5])]  # what policy and teacher say of each token
    said = [[TokenScores(torch.tensor(own), teacher=torch.tensor(teacher)) for own, teacher in rows]]
    ((good, bad),) = Distillation().credits([group], said)
    assert good.advantages.tolist() == [0.75, -1.0, 0.0]
    assert bad.advantages.tolist() == [2.5]  # of a failure, and of an episode alone
    assert Distillation().allows_single_episode_groups
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
