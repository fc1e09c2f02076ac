import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.kl import KLEstimator, kl_divergence
from tests.algorithms.fixture import MASK, NEW, OLD, assert_golden


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.1), ("abs", 0.3), ("k2", 0.069), ("k3", 0.0632254)])
def test_golden_values(estimator: KLEstimator, expected: float) -> None:
    # d = new - old on the five action tokens: .4, -.4, 0, -.1, .6; k1: .5 / 5, abs: 1.5 / 5, k2: .69 / 2 / 5
    assert_golden(kl_divergence(NEW, OLD, estimator=estimator)[MASK].mean(), expected)


@given(st.floats(-500, 0), st.floats(-500, 0))
def test_k3_is_finite_and_never_negative(logprob: float, reference: float) -> None:
    value = kl_divergence(torch.tensor([[logprob]]), torch.tensor([[reference]]), estimator="k3").item()
    assert 0 <= value < math.inf


@pytest.mark.parametrize(
    ("difference", "value", "gradient"),
    [
        (-20.0, 10.0, 0.0),  # e^20 - 1 - 20 = 4.9e8
        (20.0, 10.0, 0.0),  # e^-20 - 1 + 20 = 19
        (-2.0, math.e**2 - 3, 1 - math.e**2),  # 4.389: below the bound; d/dd = 1 - e^-d
        (2.0, math.e**-2 + 1, 1 - math.e**-2),
    ],
)
def test_one_token_far_from_the_reference_adds_at_most_ten(difference: float, value: float, gradient: float) -> None:
    logprobs = torch.tensor([[difference - 30.0]], requires_grad=True)
    divergence = kl_divergence(logprobs, torch.tensor([[-30.0]]), estimator="k3")
    divergence.sum().backward()
    assert divergence.item() == pytest.approx(value, rel=1e-5)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient, rel=1e-5)


@pytest.mark.parametrize("difference", [-300.0, -90.0, -21.0, 21.0, 90.0, 300.0])
@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", lambda d: d, lambda _: 1.0),
        ("abs", abs, lambda d: math.copysign(1.0, d)),
        ("k2", lambda d: d * d / 2, lambda d: d),
        ("k3", lambda _: 10.0, lambda _: 0.0),  # finite: that of infinity times 0 would be none
    ],
)
def test_the_farther_the_policy_is_the_less_it_may_lose_its_way_back(estimator, difference, value, gradient) -> None:
    logprobs = torch.tensor([[difference - 301.0]], requires_grad=True)
    divergence = kl_divergence(logprobs, torch.tensor([[-301.0]]), estimator=estimator)
    divergence.sum().backward()
    assert divergence.item() == pytest.approx(value(difference))
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(gradient(difference))


def test_the_gradient_of_k3_vanishes_where_the_policies_agree() -> None:
    logprobs = OLD.clone().requires_grad_()
    kl_divergence(logprobs, OLD, estimator="k3").sum().backward()
    assert logprobs.grad is not None
    assert torch.count_nonzero(logprobs.grad) == 0


def test_an_unknown_estimator_is_refused(unchecked: None) -> None:
    with pytest.raises(ValueError, match="estimator must be one of k1, abs, k2, k3, got 'k4'"):
        kl_divergence(NEW, OLD, estimator="k4")  # type: ignore[arg-type]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_as_a_loss_k2_has_the_gradient_of_the_kl_and_k3_that_of_the_other_direction(estimator: KLEstimator) -> None:
    logits = torch.tensor([[0.3, -0.4, 1.0]], requires_grad=True)
    policy, reference = logits.log_softmax(1), torch.tensor([[0.5, 0.2, 0.3]]).log()
    sampled = policy.exp().detach()  # every token, as often as the policy samples it
    (sampled * kl_divergence(policy, reference, estimator=estimator)).sum().backward(retain_graph=True)
    assert logits.grad is not None
    found = logits.grad.clone()
    logits.grad = None
    exact = {
        "k1": 0.0 * policy.sum(),
        "k2": (policy.exp() * (policy - reference)).sum(),  # KL(π ‖ π_ref)
        "k3": (reference.exp() * (reference - policy)).sum(),  # KL(π_ref ‖ π)
    }
    exact[estimator].backward()
    torch.testing.assert_close(found, logits.grad)
