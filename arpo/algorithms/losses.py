"""The clipped policy loss of the tokens that the policy sampled, and their average over a minibatch.

Every tensor is compact: one row a sequence, only its action tokens, packed to the left, `mask` False on padding.
A minibatch may be computed in any split into micro-batches: each micro-batch divides by the counts of the whole
minibatch (`MinibatchAverage`), so the losses and the gradients of the micro-batches add up to those of the
minibatch, and so do the `LossMetrics`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arpo.errors import check_one_of

MAX_LOG_RATIO = 20.0
"""Bound of a log-ratio before `exp`. e^20 ≈ 5e8 is far outside of any clip range, so no useful value changes, but
it is finite: an advantage of zero times an infinite ratio would be NaN instead of zero, and one outlier with a
negative advantage, which the clip does not bound, would make the gradient of the whole minibatch infinite."""
MAX_SEQUENCE_LOG_RATIO = 10.0
"""Upper bound of a sequence's mean log-ratio, as in verl 0.9.1. A mean over hundreds of tokens lies near 0, and all of
them carry the same ratio: at 20 one sequence would weigh 5e8 on each of its tokens."""

Aggregation = Literal["sequence", "token", "sequence_sum", "dr_grpo"]
RatioLevel = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class MinibatchAverage:
    """The average that makes one number of the token losses of one minibatch.

    * `sequence`: mean over sequences of the mean over tokens (arXiv 2402.03300, equation 3; ARPO).
    * `token`: mean over all tokens of the minibatch (DAPO, arXiv 2503.14476, equation 8).
    * `sequence_sum`: mean over sequences of the sum over tokens.
    * `dr_grpo`: sum over all tokens / (sequences · length), a constant length (arXiv 2503.20783, section 3.2).

    The counts are those of the whole minibatch, over all micro-batches. Data-parallel ranks average their gradients,
    which divides once more than the formula says: there, the counts over all ranks are divided by the ranks.
    """

    aggregation: Aggregation
    sequences: float
    """Sequences of the whole minibatch, those without an advantage included."""
    tokens: float
    """Action tokens of the whole minibatch."""
    length: int | None = None
    """The constant that `dr_grpo` divides by, usually the most tokens that a sequence can have."""

    def __post_init__(self) -> None:
        check_one_of(Aggregation, aggregation=self.aggregation)
        if self.sequences <= 0 or self.tokens <= 0:
            raise ValueError(
                f"a minibatch needs sequences and action tokens, got {self.sequences} sequences with {self.tokens} "
                "tokens; skip an empty minibatch"
            )
        if (self.aggregation == "dr_grpo") != (self.length is not None):
            raise ValueError(f"length belongs to aggregation 'dr_grpo' alone, got {self.aggregation!r}, {self.length}")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}")

    def __call__(
        self, values: Float[Tensor, "batch actions"], mask: Bool[Tensor, "batch actions"]
    ) -> Float[Tensor, ""]:
        """Return a micro-batch's share of the average; the shares of all micro-batches add up to it."""
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
                assert self.length is not None  # __post_init__
                return masked.sum() / (self.sequences * self.length)


@dataclass(frozen=True, slots=True)
class ClipRange:
    """The ratios that still count: [1 - low, 1 + high], and at most `dual` where the advantage is negative."""

    low: float = 0.2
    high: float = 0.3
    dual: float | None = None
    """Off in the paper, 3.0 in the official code (dual clip, arXiv 1912.09729)."""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1:
            raise ValueError(f"clip_low must lie in [0, 1], got {self.low}; ratios below 1 - clip_low are clipped")
        if not 0 <= self.high < torch.inf:
            raise ValueError(
                f"clip_high must be at least 0 and finite, got {self.high}; ratios above 1 + clip_high are clipped"
            )
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
    """The losses of the tokens of a micro-batch and what to log about them."""

    losses: Float[Tensor, "batch actions"]
    """Carries the gradient; a `MinibatchAverage` makes one number of them."""
    metrics: LossMetrics | None = None
    """Of the clipped ratio, detached; adds up over micro-batches. None where a loss has none."""
    measured: Mapping[str, Float[Tensor, "batch actions"]] = field(default_factory=dict)
    """Detached numbers of each token by name, whose means are logged as `train/<name>`."""


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
        logprobs: Of the sampled tokens under the policy that is being updated; the only input with a gradient.
        old_logprobs: The same before the first minibatch.
        advantages: Of each token.
        mask: True on action tokens.
        clip: The ratios that still count.
        level: `token`: a ratio a token. `sequence`: one ratio a sequence, the geometric mean s of its tokens' ratios
            (GSPO, arXiv 2507.18071, equation 7); a token's gradient is that of sg[s] · π / sg[π] (equation 14), so
            that the weight of a token weighs that token's gradient alone.
        weights: Factors outside of the min, constant in the gradient: corrections of sampler-trainer mismatch
            (`corrections.py`) and selections of steps (`selection.py`). Averages still count a token of weight 0.
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
    check_one_of(RatioLevel, level=level)
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
