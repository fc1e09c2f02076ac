"""The loss of the tokens that the policy sampled, its factors and penalties, and the average over a minibatch.

Every tensor is compact: one row a sequence, only its action tokens, packed to the left, `mask` False on padding.
A minibatch may be computed in any split into micro-batches: each micro-batch divides by the counts of the whole
minibatch (`MinibatchAverage`), so the losses and the gradients of the micro-batches add up to those of the
minibatch, and so do the `LossMetrics`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arpo.bounds import AtLeastOne, Positive, checked
from arpo.errors import ConfigError

MAX_LOG_RATIO = 20.0
"""Bound of a log-ratio before `exp`. e^20 ≈ 5e8 is far outside of any clip range, so no useful value changes, but
it is finite: an advantage of zero times an infinite ratio would be NaN instead of zero, and one outlier with a
negative advantage, which the clip does not bound, would make the gradient of the whole minibatch infinite."""
MAX_SEQUENCE_LOG_RATIO = 10.0
"""Upper bound of a sequence's mean log-ratio, as in verl 0.9.1. A mean over hundreds of tokens lies near 0, and all of
them carry the same ratio: at 20 one sequence would weigh 5e8 on each of its tokens."""

Aggregation = Literal["sequence", "token", "sequence_sum", "dr_grpo", "episode"]
RatioLevel = Literal["token", "sequence"]
KLEstimator = Literal["k1", "abs", "k2", "k3"]
CorrectionName = Literal["none", "tis_token", "tis_sequence", "icepop", "sequence_mask", "decoupled"]
OutsideBand = Literal["truncate", "mask"]


@checked
@dataclass(frozen=True, slots=True)
class MinibatchAverage:
    """The average that makes one number of the token losses of one minibatch.

    * `sequence`: mean over sequences of the mean over tokens (arXiv 2402.03300, equation 3; ARPO).
    * `token`: mean over all tokens of the minibatch (DAPO, arXiv 2503.14476, equation 8).
    * `sequence_sum`: mean over sequences of the sum over tokens.
    * `dr_grpo`: sum over all tokens / (sequences · length), a constant length (arXiv 2503.20783, section 3.2).
    * `episode`: mean over episodes of the mean over all tokens of an episode, on however many sequences they are:
      1/E Σ_e 1/T_e Σ_t L_t. An agent that forks its conversation weighs no more for it. E are the episodes of a pass
      over the batch, by its minibatches: the mean of these is exactly the average over the pass, whatever episodes,
      or sequences of one, each of them holds.

    The other counts are those of the whole minibatch, over all micro-batches. Data-parallel ranks average their
    gradients, which divides once more than the formula says: there, the counts of all ranks are divided by the ranks.
    """

    aggregation: Aggregation
    sequences: Positive
    """Sequences of the whole minibatch, those without an advantage included."""
    tokens: Positive
    """Action tokens of the whole minibatch."""
    length: AtLeastOne | None = None
    """The constant that `dr_grpo` divides by, usually the most tokens that a sequence can have."""
    episodes: Positive | None = None
    """Episodes with a sampled token in a pass over the batch, divided by its minibatches; for `episode`."""

    def __call__(
        self,
        values: Float[Tensor, "batch actions"],
        mask: Bool[Tensor, "batch actions"],
        episode_tokens: Float[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return a micro-batch's share of the average; the shares of all micro-batches add up to it.

        `episode` divides each row by the action tokens of its whole episode.
        """
        masked = torch.where(mask, values, 0.0)
        match self.aggregation:
            case "sequence":
                # A row without action tokens contributes 0 instead of 0 / 0.
                return (masked.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / self.sequences
            case "token":
                return masked.sum() / self.tokens
            case "sequence_sum":
                return masked.sum() / self.sequences
            case "dr_grpo":
                assert self.length is not None, "dr_grpo has a length"
                return masked.sum() / (self.sequences * self.length)
            case "episode":
                assert self.episodes is not None, "episode has a count of episodes"
                assert episode_tokens is not None, "episode has the tokens of each row's episode"
                return (masked.sum(dim=1) / episode_tokens).sum() / self.episodes


@dataclass(frozen=True, slots=True)
class ClipRange:
    """The ratios that still count: [1 - low, 1 + high], and at most `dual` where the advantage is negative."""

    low: float = 0.2
    high: float = 0.3
    dual: float | None = None
    """Off in the paper, 3.0 in the official code (dual clip, arXiv 1912.09729)."""

    def __post_init__(self) -> None:
        if self.low == self.high == 0:
            raise ValueError("clip_low=0 with clip_high=0 leaves no ratio that counts but 1: raise one of them")
        if self.dual is not None and not 1 + self.high < self.dual < torch.inf:
            raise ValueError(
                f"dual_clip must be finite and above 1 + clip_high = {1 + self.high}, got {self.dual}; "
                "None switches it off"
            )


@dataclass(frozen=True, slots=True)
class LossMetrics:
    """Sums over action tokens. Add those of all micro-batches (and ranks), then take `averages`."""

    tokens: Tensor
    ratio: Tensor
    ratio_min: Tensor
    ratio_max: Tensor
    approx_kl: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor

    def __add__(self, other: "LossMetrics") -> "LossMetrics":
        extremes = {"ratio_min": torch.minimum, "ratio_max": torch.maximum}
        joined = {
            each.name: extremes.get(each.name, torch.add)(getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
        }
        return LossMetrics(**joined)

    def averages(self) -> dict[str, float]:
        """Return the means over tokens, and the extremes of the ratio, under the names of the log."""
        tokens = max(self.tokens.item(), 1.0)
        return {
            "ratio_mean": self.ratio.item() / tokens,
            "ratio_min": self.ratio_min.item(),
            "ratio_max": self.ratio_max.item(),
            "approx_kl": self.approx_kl.item() / tokens,
            "clip_fraction_low": self.clipped_low.item() / tokens,
            "clip_fraction_high": self.clipped_high.item() / tokens,
            "clip_fraction_dual": self.clipped_dual.item() / tokens,
        }


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """The losses of the tokens of a micro-batch, with gradient, and what to log about them."""

    losses: Float[Tensor, "batch actions"]
    metrics: LossMetrics | None = None
    """Of the clipped ratio, detached; None where a loss has none."""
    measured: Mapping[str, Float[Tensor, "batch actions"]] = field(default_factory=dict)
    """Detached numbers of each token by name, whose means are logged as `train/<name>`."""


@checked
def policy_loss(
    logprobs: Float[Tensor, "batch actions"],
    old_logprobs: Float[Tensor, "batch actions"],
    advantages: Float[Tensor, "batch actions"],
    mask: Bool[Tensor, "batch actions"],
    *,
    clip: ClipRange,
    level: RatioLevel = "token",
    weights: Float[Tensor, "batch actions"] | None = None,
) -> TokenLoss:
    """Return the clipped surrogate loss of each token (arXiv 2402.03300, equation 3; 2505.16282, section 3.1).

        L = -w · min(ρ A, clip(ρ, 1 - low, 1 + high) A),   ρ = exp(log π - log π_old)

    With a dual clip c, the min of a negative advantage is bounded below by c A (arXiv 1912.09729).

    Args:
        logprobs: Under the policy that is being updated; the only input with a gradient.
        old_logprobs: Before the first minibatch.
        advantages: Of each token.
        mask: True on action tokens.
        clip: The ratios that still count.
        level: `token`: a ratio a token. `sequence`: one ratio a sequence, the geometric mean s of its tokens' ratios
            (GSPO, arXiv 2507.18071, equation 7); a token's gradient is that of sg[s] · π / sg[π] (equation 14), so
            that the weight of a token weighs that token's gradient alone.
        weights: Factors outside of the min, constant in the gradient: corrections of sampler-trainer mismatch
            (`Correction`) and selections of steps (`modules/minibatch.py`). Averages still count a token of weight 0.
    """
    ratio, log_ratio = _ratios(logprobs, old_logprobs, mask, level)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip.low, 1 + clip.high) * advantages)
    if clip.dual is not None:
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, clip.dual * advantages), surrogate)
    if weights is not None:
        surrogate = surrogate * torch.where(mask, weights.detach(), 0.0)
    with torch.no_grad():
        metrics = _metrics(ratio, log_ratio, advantages, mask, clip)
    return TokenLoss(-surrogate, metrics)


def _ratios(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, level: str) -> tuple[Tensor, Tensor]:
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    largest = MAX_LOG_RATIO
    if level == "sequence":
        largest = MAX_SEQUENCE_LOG_RATIO
        mean = (log_ratio.sum(dim=1) / mask.sum(dim=1).clamp(min=1))[:, None].detach()
        log_ratio = mean + torch.where(mask, logprobs - logprobs.detach(), 0.0)  # 0 in value, 1 in the gradient
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, largest)
    return log_ratio.exp(), log_ratio


def _metrics(ratio: Tensor, log_ratio: Tensor, advantages: Tensor, mask: Tensor, clip: ClipRange) -> LossMetrics:
    def total(values: Tensor) -> Tensor:
        return torch.where(mask, values.to(ratio.dtype), 0.0).sum()

    infinity = torch.tensor(torch.inf, dtype=ratio.dtype, device=ratio.device)
    too_large = ratio > clip.dual if clip.dual is not None else torch.zeros_like(mask)
    return LossMetrics(
        tokens=mask.sum(),
        ratio=total(ratio),
        ratio_min=torch.where(mask, ratio, infinity).amin() if mask.numel() else infinity,
        ratio_max=torch.where(mask, ratio, -infinity).amax() if mask.numel() else -infinity,
        approx_kl=total(torch.expm1(log_ratio) - log_ratio),
        clipped_low=total((advantages < 0) & (ratio < 1 - clip.low)),
        clipped_high=total((advantages > 0) & (ratio > 1 + clip.high)),
        clipped_dual=total((advantages < 0) & too_large),
    )


# --- the gap between sampler and trainer -----------------------------------------------------------------------------


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
    """A rule that corrects the gap between the engine that sampled a token and the trainer that learns from it.

    Two things part them: the programs round differently, and an engine that runs ahead serves an older policy. The
    correction is a weight for `policy_loss(weights=…)`, outside of the min and without a gradient, made of the
    importance ratio of the policy before the update (the trainer's own, recomputed) and the sampler's:

        r = π_old / π_sampler  of a token, or the product over the tokens of a sequence
    """

    level: RatioLevel
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
    def named(cls, name: CorrectionName, band: Sequence[float] | None = None) -> "Correction | None":
        """Return a published correction by its name, None for `none`; `band` stands in the place of its own."""
        if band is not None and len(band) != 2:
            raise ConfigError(f"correction_band must be [low, high], got {list(band)}")
        if name == "none":
            if band is not None:
                raise ConfigError(f"correction_band={list(band)} belongs to a correction: set correction too")
            return None
        return PUBLISHED[name] if band is None else replace(PUBLISHED[name], low=band[0], high=band[1])

    def weights(
        self,
        old_logprobs: Float[Tensor, "batch actions"],
        sampler_logprobs: Float[Tensor, "batch actions"],
        mask: Bool[Tensor, "batch actions"],
    ) -> CorrectionWeights:
        """Return the weight of every token, from what trainer and engine said of it before the update."""
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


# --- the divergence from a reference ---------------------------------------------------------------------------------

MAX_K3 = 10.0
"""Bound of k3, as in verl 0.9.1: one token that the reference finds e^20 times likelier would add 4.9e8 to the loss.
A bounded token has no gradient; the bound is reached at d = -2.6, where π is a thirteenth of π_ref, and at d = 11."""


@checked
def kl_divergence(
    logprobs: Float[Tensor, "batch actions"],
    reference_logprobs: Float[Tensor, "batch actions"],
    *,
    estimator: KLEstimator = "k3",
) -> Float[Tensor, "batch actions"]:
    """Estimate KL(π ‖ π_ref) at every token that π sampled (Schulman, "Approximating KL divergence", 2020).

    Its gradient goes on however far the policy is from the reference, as in verl 0.9.1; k3 alone is bounded. With
    d = log π - log π_ref:

    * `k1`: d. Unbiased, of high variance, negative on half of the tokens. As a loss its expected gradient is
      zero; it belongs into a reward or a metric.
    * `abs`: |d|.
    * `k2`: d² / 2. Biased, but as a loss its expected gradient is that of the KL.
    * `k3`: min(exp(-d) - 1 + d, 10). Unbiased below the bound and never negative; GRPO's choice (arXiv 2402.03300,
      equation 4). As a loss its expected gradient is not that of the KL but, below the bound, of KL(π_ref ‖ π).
    """
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
