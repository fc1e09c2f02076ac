"""Corrections of the gap between the engine that sampled a token and the trainer that learns from it.

The weights go into `policy_loss(weights=…)`, outside of the min, without a gradient. Weights of several
corrections and selections combine by multiplication. On padding every weight is 0.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arpo.algorithms.losses import MAX_LOG_RATIO
from arpo.errors import check_one_of

CorrectionLevel = Literal["token", "sequence"]


def truncated_importance_weights(
    old_logprobs: Float[Tensor, "batch actions"],
    sampler_logprobs: Float[Tensor, "batch actions"],
    mask: Bool[Tensor, "batch actions"],
    *,
    level: CorrectionLevel = "token",
    cap: float = 1.0,
) -> Float[Tensor, "batch actions"]:
    """Return w = min(π_old / π_sampler, cap) (truncated importance sampling; DART, arXiv 2509.23866).

    Args:
        old_logprobs: The trainer's, before the update.
        sampler_logprobs: The engine's, at generation.
        mask: True on action tokens.
        level: `token`: a weight a token (DART with cap 1). `sequence`: the product over the sequence's tokens, the
            same weight for all of them (unbiased but of high variance; usual caps are 2 to 5).
        cap: The largest weight.

    Raises:
        ValueError: When `level` is unknown or `cap` is not positive.
    """
    check_one_of(CorrectionLevel, level=level)
    if cap <= 0:
        raise ValueError(f"cap must be positive, got {cap}; a weight of 1 means no mismatch")
    log_ratio = _log_ratio(old_logprobs, sampler_logprobs, mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(dim=1, keepdim=True).expand_as(mask)
    weights = _bounded_exp(log_ratio).clamp(max=cap)
    return torch.where(mask, weights, 0.0)


def icepop_weights(
    old_logprobs: Float[Tensor, "batch actions"],
    sampler_logprobs: Float[Tensor, "batch actions"],
    mask: Bool[Tensor, "batch actions"],
    *,
    low: float = 0.5,
    high: float = 5.0,
) -> Float[Tensor, "batch actions"]:
    """Return w = π_old / π_sampler where it lies in [low, high], else 0 (IcePop, arXiv 2510.18855).

    A token on which trainer and engine disagree by more than the band is dropped instead of bounded.

    Raises:
        ValueError: When the band does not contain 1, the ratio of two programs that agree.
    """
    if not 0 <= low <= 1 <= high:
        raise ValueError(f"the band must contain 1 and not be negative, got [{low}, {high}]")
    ratio = _bounded_exp(_log_ratio(old_logprobs, sampler_logprobs, mask))
    return torch.where(mask & (ratio >= low) & (ratio <= high), ratio, 0.0)


def off_policy_sequence_mask(
    advantages: Float[Tensor, "batch"],
    logprobs: Float[Tensor, "batch actions"],
    sampler_logprobs: Float[Tensor, "batch actions"],
    mask: Bool[Tensor, "batch actions"],
    *,
    threshold: float,
) -> Bool[Tensor, "batch actions"]:
    """Return the action tokens of the sequences to keep (off-policy sequence masking, arXiv 2512.02556).

    A sequence is dropped when its advantage is negative and its tokens' mean of log π_sampler - log π lies above
    the threshold: pushing down what the policy hardly does any more is noise. Successes always stay.
    """
    divergence = -_log_ratio(logprobs, sampler_logprobs, mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return mask & ((advantages >= 0) | (divergence <= threshold))[:, None]


def _log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, numerator - denominator, 0.0)


def _bounded_exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().detach()
