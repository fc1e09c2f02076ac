"""The credit and the loss of GRPO and its relatives; the formulas are tested with those of `arpo.algorithms`."""

import math
from dataclasses import replace

import pytest
import torch

from arpo.errors import ConfigError
from arpo.methods.grpo import GRPO
from arpo.methods.method import TokenTerms
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


def test_imitation_teaches_a_group_in_which_all_succeed(make_group):
    succeeded, failed = (make_group(trajectory("a", reward), trajectory("a", reward)) for reward in (1.0, 0.0))
    assert GRPO(imitation=0.5).advantages(succeeded).tolist() == [0.5, 0.5]
    assert GRPO(imitation=0.5).advantages(failed).tolist() == [0.0, 0.0]


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
    terms = TokenTerms(
        torch.tensor([ratios]).log(), torch.zeros(1, 2), torch.full((1, 2), advantage), torch.ones(1, 2).bool()
    )
    assert GRPO(**options).loss(terms).losses[0].tolist() == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"imitation": math.inf}, "imitation must be finite, got inf"),
        ({"kl_coefficient": math.nan}, "kl_coefficient must be at least 0, got nan"),
        ({"kl_coefficient": -0.1}, "kl_coefficient must be at least 0, got -0.1"),
        ({"correction": "tis"}, "correction must be one of none, tis_token"),
        ({"correction": "icepop", "correction_band": (2.0, 3.0)}, "0 <= low <= 1 <= high"),
        ({"high_entropy_steps": 0.0}, "high_entropy_steps must lie in"),
        ({"high_entropy_steps": 1.1}, "high_entropy_steps must lie in"),
        ({"format_weight": -1.0}, "format_weight must be at least 0, got -1.0"),
        ({"std": "biased"}, "std must be one of sample, population, got 'biased'"),
        ({"estimator": "ppo"}, "estimator must be one of grpo"),
        ({"level": "word"}, "level must be one of token, sequence"),
        ({"aggregation": "mean"}, "aggregation must be one of sequence"),
        ({"aggregation": "dr_grpo"}, "belongs to aggregation=dr_grpo"),
        ({"aggregation": "dr_grpo", "dr_grpo_length": 0}, "dr_grpo_length must be at least 1, got 0"),
        ({"dr_grpo_length": 5}, "belongs to aggregation=dr_grpo"),
        ({"kl": "k9"}, "kl must be one of k1"),
    ],
    ids=str,
)
def test_an_impossible_option_is_refused_with_its_name(options, words):
    with pytest.raises(ConfigError, match=words):
        GRPO(**options)


def test_a_group_of_one_teaches_by_imitation_alone():
    assert not GRPO().learns_alone
    assert GRPO(imitation=0.1).learns_alone


def test_tokens_are_weighed_where_a_correction_is_asked_for():
    old, sampler = torch.zeros(2, 1), torch.full((2, 1), 1.0)
    mask, replayed = torch.ones(2, 1, dtype=torch.bool), torch.tensor([False, True])
    assert GRPO(correction="none").weights(old, sampler, mask, replayed) is None
    found = GRPO(correction="tis_token").weights(old, sampler, mask, replayed)
    assert found.weights.flatten().tolist() == pytest.approx([math.exp(-1), 1.0])  # a replayed success counts in full
