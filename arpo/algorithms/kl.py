"""Estimators of the divergence from a reference policy, one number a sampled token."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from arpo.algorithms.losses import MAX_LOG_RATIO
from arpo.errors import check_one_of

KLEstimator = Literal["k1", "abs", "k2", "k3"]

MAX_K3 = 10.0
"""Bound of k3, as in verl 0.9.1: one token that the reference finds e^20 times likelier would add 4.9e8 to the loss.
A bounded token has no gradient; the bound is reached at d = -2.6, where π is a thirteenth of π_ref, and at d = 11."""


def kl_divergence(
    logprobs: Float[Tensor, "batch actions"],
    reference_logprobs: Float[Tensor, "batch actions"],
    *,
    estimator: KLEstimator = "k3",
) -> Float[Tensor, "batch actions"]:
    """Estimate KL(π ‖ π_ref) at every token that π sampled (Schulman, "Approximating KL divergence", 2020).

    With d = log π - log π_ref:

    Their gradient goes on however far the policy is from the reference, as in verl 0.9.1; k3 alone is bounded.

    * `k1`: d. Unbiased, of high variance, negative on half of the tokens. As a loss its expected gradient is
      zero; it belongs into a reward or a metric.
    * `abs`: |d|.
    * `k2`: d² / 2. Biased, but as a loss its expected gradient is that of the KL.
    * `k3`: min(exp(-d) - 1 + d, 10). Unbiased below the bound and never negative; GRPO's choice (arXiv 2402.03300,
      equation 4). As a loss its expected gradient is not that of the KL but, below the bound, of KL(π_ref ‖ π).
    """
    check_one_of(KLEstimator, estimator=estimator)
    difference = logprobs - reference_logprobs
    match estimator:
        case "k1":
            return difference
        case "abs":
            return difference.abs()
        case "k2":
            return 0.5 * difference.square()
        case _:
            # `expm1` keeps the value from drowning in the rounding of 1 where the policies nearly agree.
            bounded = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)  # of e^90, float32 has no more than infinity
            return (torch.expm1(-bounded) + bounded).clamp(max=MAX_K3)
