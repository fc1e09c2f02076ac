"""CISPO of MiniMax-M1 (arXiv 2506.13585): the clip bounds the weight of a token, and takes no gradient away."""

from dataclasses import dataclass

from typing_extensions import override

from arpo.algorithms.losses import Aggregation, TokenLoss, importance_ratio
from arpo.bounds import NotNegative, Share, checked
from arpo.errors import ConfigError
from arpo.methods.grpo import GRPO
from arpo.methods.method import TokenTerms


@checked
@dataclass(frozen=True, kw_only=True)
class CISPO(GRPO):
    """GRPO with the loss -sg[clip(ρ, 1 - `clip_low`, 1 + `clip_high`)] · A · log π, a mean over tokens (equation 4).

    The clip fractions in the log are of the tokens whose gradient GRPO would have lost.
    """

    clip_low: Share = 1.0
    clip_high: NotNegative = 4.0
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        if self.dual_clip is not None or self.level != "token":
            raise ConfigError(
                f"dual_clip={self.dual_clip} with level={self.level}: CISPO clips a weight a token; leave both out"
            )
        super().__post_init__()

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        ratio = importance_ratio(terms.logprobs - terms.old_logprobs)  # without gradient
        factor = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        if terms.weights is not None:
            factor = factor * terms.weights.detach()
        return TokenLoss(-factor * terms.advantages * terms.logprobs, super().loss(terms).metrics)
