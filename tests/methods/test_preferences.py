"""Offline losses against those of TRL 1.16.0, and against numbers computed by hand.

The golden values are what `DPOTrainer._compute_loss` and `KTOTrainer._compute_loss` gave, with the gradient by the
policy's log-probabilities, for a model whose output is a random log-probability a sequence (float64, uniform in
[-6, -0.5], rounded to four digits), precomputed ones of the reference, and, for KTO, given ones of mismatched pairs.
"""

import pytest
import torch
from torch import Tensor

from arpo.methods.dpo import DPO
from arpo.methods.kto import KTO
from tests.algorithms.test_losses import assert_golden
from tests.methods.conftest import trajectory


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


PAIRS = [
    (
        0.1,
        numbers(-0.6647, -2.107, -3.4734, -0.9359, -5.6642, -4.765, -4.7116, -5.026),  # chosen, then rejected
        numbers(-0.9534, -5.467, -2.1019, -3.0286, -5.8124, -4.4229, -1.749, -5.0379),  # the reference's
        0.6056217,
        [-0.0124122, -0.0102123, -0.0115077, -0.0112042, 0.0124122, 0.0102123, 0.0115077, 0.0112042],
    ),
    (
        0.7,
        numbers(-2.3443, -3.2501, -2.0863, -2.9731, -4.9422, -1.1309, -2.3065, -2.3443),
        numbers(-2.0098, -2.5803, -4.5196, -5.4595, -1.96, -3.3357, -5.3267, -1.301),
        0.8209809,
        [-0.0237082, -0.154363, -0.1052252, -0.013638, 0.0237082, 0.154363, 0.1052252, 0.013638],
    ),
]
DESIRABLE = torch.tensor([True, False, True, False, False])
SINGLES = [
    (
        (0.1, 1.0, 1.33),  # beta and the weights of both kinds
        numbers(-3.2947, -3.1526, -1.2979, -1.4067, -3.2397),
        numbers(-1.663, -5.4688, -3.035, -4.5146, -1.986),
        numbers(-0.9005, -3.3445, -4.5596, -2.674, -3.0363) - numbers(-3.6566, -3.9132, -2.3613, -4.0932, -2.145),
        0.33088,
        0.6227551,
        [-0.0049522, 0.0065849, -0.0049754, 0.0065234, 0.0066084],
    ),
    (
        (0.7, 1.5, 1.0),
        numbers(-4.8673, -1.749, -0.9284, -5.1382, -3.6856),
        numbers(-1.3897, -4.8989, -2.6952, -5.3963, -4.2242),
        numbers(-5.9712, -4.2816, -1.0294, -4.9846, -2.1536) - numbers(-0.7819, -2.9768, -2.6628, -5.4842, -2.863),
        0.0,  # the mean is negative
        0.7511004,
        [-0.0155605, 0.0125225, -0.0366188, 0.0347159, 0.0337851],
    ),
]


def loss_of_pairs(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    batch = [trajectory("a", reward) for _ in chosen for reward in (1.0, 0.0)]
    return DPO(beta=beta).loss(torch.stack([chosen, rejected], 1).flatten(), batch)[0]


def loss_of_singles(ratios: Tensor, desirable: Tensor, extra: Tensor | None, *options: float) -> tuple[Tensor, float]:
    batch = [trajectory("a", float(good)) for good in desirable]
    names = ("beta", "desirable_weight", "undesirable_weight")
    loss, metrics = KTO(**dict(zip(names, options, strict=True))).loss(ratios, batch, extra)
    return loss, metrics["train/kl_baseline"]


@pytest.mark.parametrize(("beta", "policy", "reference", "loss", "gradient"), PAIRS)
def test_dpo_and_its_gradient_are_trl_s(beta, policy, reference, loss, gradient):
    policy = policy.clone().requires_grad_()
    actual = loss_of_pairs(*(policy - reference).chunk(2), beta)
    assert_golden(actual.detach(), loss)
    assert_golden(torch.autograd.grad(actual, policy)[0], gradient)


@pytest.mark.parametrize(("options", "policy", "reference", "mismatched", "baseline", "loss", "gradient"), SINGLES)
def test_kto_and_its_gradient_are_trl_s(options, policy, reference, mismatched, baseline, loss, gradient):
    policy = policy.clone().requires_grad_()
    actual, found = loss_of_singles(policy - reference, DESIRABLE, mismatched, *options)
    assert found == pytest.approx(baseline, abs=1e-6)
    assert_golden(actual.detach(), loss)
    assert_golden(torch.autograd.grad(actual, policy)[0], gradient)


def test_a_pair_that_is_told_apart_by_log_3_costs_log_4_thirds():
    # beta 0.5, difference 2 log 3: -log σ(log 3) = log(1 + 1/3)
    assert (DPO.least_examples, KTO.least_examples) == (1, 2)
    twice = 2 * torch.log(torch.tensor([3.0]))
    assert_golden(loss_of_pairs(twice, torch.zeros(1), 0.5), 0.2876821)
    assert_golden(loss_of_pairs(torch.zeros(1), twice, 0.5), 1.3862944)  # log(1 + 3)


def test_a_gain_and_a_loss_of_log_3_against_the_baseline_cost_a_quarter_and_three_quarters():
    log_3 = torch.log(torch.tensor(3.0))
    # success: 2 (1 - σ(log 3)) = 2 / 4; failure: 4 σ(log 3) = 4 · 3/4, and 4 σ(-log 3) = 4 / 4
    for ratio, desirable, expected in [(1 + log_3, True, 0.5), (1 + log_3, False, 3.0), (1 - log_3, False, 1.0)]:
        found, _ = loss_of_singles(ratio[None].repeat(2), torch.tensor([desirable] * 2), torch.ones(1), 1.0, 2.0, 4.0)
        assert_golden(found, expected)


def test_a_ratio_far_from_the_baseline_costs_a_finite_loss_with_a_finite_gradient():
    ratios = torch.tensor([200.0, -200.0], requires_grad=True)
    single, _ = loss_of_singles(ratios, torch.tensor([True, True]), None, 1.0, 1.0, 1.0)
    losses = single + loss_of_pairs(ratios, -ratios, 1.0)
    assert losses.isfinite()
    assert torch.autograd.grad(losses, ratios)[0].isfinite().all()
