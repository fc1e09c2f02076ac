"""CISPO of MiniMax-M1 (arXiv 2506.13585): the clip bounds the weight of a token, and takes no gradient away."""

from dataclasses import dataclass

from typing_extensions import override

from arpo.algorithms.losses import Aggregation, TokenLoss, weighted_loss
from arpo.errors import ConfigError
from arpo.methods.grpo import GRPO
from arpo.methods.method import TokenTerms


@dataclass(frozen=True, kw_only=True)
class CISPO(GRPO):
    """GRPO with the loss -sg[clip(ρ, 1 - `clip_low`, 1 + `clip_high`)] · A · log π, a mean over all tokens.

    Raises:
        ConfigError: When a dual clip or a ratio of sequences is asked for, which this loss has not; see also `GRPO`.
    """

    clip_low: float = 1.0
    clip_high: float = 4.0
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        for name, value, only in (("dual_clip", self.dual_clip, None), ("level", self.level, "token")):
            if value != only:
                raise ConfigError(
                    f"{name}={value}: CISPO has one clipped weight a token and no surrogate: leave {name} out"
                )
        super().__post_init__()

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        return weighted_loss(
            terms.logprobs,
            terms.old_logprobs,
            terms.advantages,
            terms.mask,
            clip=self.clip,
            weights=terms.weights,
        )
