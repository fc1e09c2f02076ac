"""CISPO's loss, against numbers computed by hand."""

import math

import pytest
import torch

from arpo.errors import ConfigError
from arpo.methods.cispo import CISPO
from arpo.methods.method import TokenTerms


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
    assert (averages["clip_fraction_low"], averages["clip_fraction_high"]) == (
        0.2,
        0.2,
    )  # as in GRPO
    assert averages["ratio_mean"] == pytest.approx(8 / 5)


def test_there_is_no_lower_bound_unless_one_is_set_and_corrections_multiply():
    given = terms([0.01, 9.0], [1.0, 1.0], weights=[0.5, 2.0])
    assert CISPO().loss(given).losses.tolist()[0] == pytest.approx([0.5 * 0.01 * 2, 2 * 5 * 2, 0.0])


@pytest.mark.parametrize("options", [{"dual_clip": 6.0}, {"level": "sequence"}, {"clip_low": 1.1}])
def test_an_impossible_choice_is_refused(options):
    with pytest.raises((ConfigError, ValueError), match=next(iter(options))):
        CISPO(**options)
