"""Corrections of the gap between the engine that sampled a token and the trainer that learns from it.

Two things part them: the programs round differently, and an engine that runs ahead serves an older policy. Every
correction is a weight for `policy_loss(weights=…)`, outside of the min and without a gradient, made of one number, the
importance ratio of the policy before the update (the trainer's own, recomputed) and the sampler's:

    r = π_old / π_sampler  of a token, or the product over the tokens of a sequence

The correction says what becomes of a ratio outside of the band [low, high]: it is truncated to the band, or the token
or the sequence is masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arpo.algorithms.losses import MAX_LOG_RATIO
from arpo.errors import ConfigError, check_one_of

CorrectionName = Literal["none", "tis_token", "tis_sequence", "icepop", "sequence_mask", "decoupled"]
CorrectionLevel = Literal["token", "sequence"]
OutsideBand = Literal["truncate", "mask"]

ROUNDING = 0.01
"""The share of a ratio by which a band may change it before that counts as a cut. Programs that agree differ by as
much: neighbours in bfloat16 lie up to 2^-7 = 0.8 % apart, and half of such ratios lie above a bound of 1."""


@dataclass(frozen=True, slots=True)
class CorrectionWeights:
    """The weights of a micro-batch, constant in the gradient."""

    weights: Float[Tensor, "batch actions"]
    """0 on padding."""
    cut: Bool[Tensor, "batch actions"]
    """True where the band has changed the weight by more than rounding does (`ROUNDING`)."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A rule that makes a weight of a ratio."""

    level: CorrectionLevel
    """One ratio a `token`, or one a `sequence`: unbiased, but of high variance where sequences are long."""
    outside: OutsideBand
    """`truncate`: w = min(max(r, low), high). `mask`: w = r inside of the band, else 0."""
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high:
            raise ConfigError(
                f"correction_band must be [low, high] with 0 <= low <= 1 <= high, got [{self.low}, {self.high}]; "
                "1 is the ratio of an engine and a trainer that agree"
            )
        if self.low == self.high or (self.outside == "mask" and 1 in (self.low, self.high)):
            raise ConfigError(
                f"correction_band=[{self.low}, {self.high}] leaves no room around 1: [1, 1] gives every token the "
                "weight 1, and a mask that ends at 1 drops half of what was sampled on-policy; widen it, or take "
                "correction=none"
            )

    @classmethod
    def named(cls, name: str, band: Sequence[float] | None = None) -> "Correction | None":
        """Return a published correction by its name, None for `none`; `band` stands in the place of its own."""
        check_one_of(CorrectionName, correction=name)
        if band is not None and len(band) != 2:
            raise ConfigError(f"correction_band must be [low, high], got {list(band)}")
        if name == "none":
            if band is not None:
                raise ConfigError(f"correction_band={list(band)} belongs to a correction: set correction too")
            return None
        found = PUBLISHED[name]
        return found if band is None else replace(found, low=band[0], high=band[1])

    def weights(
        self,
        old_logprobs: Float[Tensor, "batch actions"],
        sampler_logprobs: Float[Tensor, "batch actions"],
        mask: Bool[Tensor, "batch actions"],
    ) -> CorrectionWeights:
        """Return the weight of every token.

        Args:
            old_logprobs: The trainer's, before the update.
            sampler_logprobs: The engine's, at generation.
            mask: True on action tokens.
        """
        log_ratio = torch.where(mask, old_logprobs - sampler_logprobs, 0.0)
        if self.level == "sequence":
            log_ratio = log_ratio.sum(dim=1, keepdim=True).expand_as(mask)
        ratio = importance_ratio(log_ratio)
        bounded = ratio.clamp(self.low, self.high)
        if self.outside == "mask":
            bounded = torch.where(bounded == ratio, ratio, 0.0)
        cut = mask & ((bounded - ratio).abs() > ROUNDING * ratio)
        return CorrectionWeights(torch.where(mask, bounded, 0.0), cut)


PUBLISHED = {
    "tis_token": Correction("token", "truncate", 0.0, 1.0),
    "tis_sequence": Correction("sequence", "truncate", 0.0, 2.0),
    "icepop": Correction("token", "mask", 0.5, 5.0),
    "sequence_mask": Correction("sequence", "mask", 0.0, 3.0),
    "decoupled": Correction("token", "mask", 0.0, 5.0),
}
"""The corrections by name, each with the band of its source:

* `tis_token`: w = min(r, 1), truncated importance sampling as in DART (arXiv 2509.23866); others cap at 2.
* `tis_sequence`: w = min(∏ r, 2), the default of verl 0.9.1.
* `icepop`: w = r where 0.5 ≤ r ≤ 5, else 0 (IcePop, arXiv 2510.18855).
* `sequence_mask`: w = ∏ r where that is at most 3, else the sequence is dropped: the default of TRL 1.16.0.
* `decoupled`: decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298). The clip bounds π / π_proximal, and the
  weight is π_proximal / π_behaviour. The proximal policy is the trainer's before the update, the behaviour policy the
  sampler's: the weight is r. Above 5 a token is dropped, as in AReaL's code; the paper has no bound."""


def importance_ratio(log_ratio: Tensor) -> Tensor:
    """Return exp of a log-ratio without a gradient; bounded, so that one outlier makes nothing infinite."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().detach()
