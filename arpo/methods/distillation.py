"""On-policy distillation: a teacher scores each token that the policy sampled (arXiv 2306.13649, 2306.08543)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from arpo.algorithms.losses import Aggregation, TokenLoss
from arpo.errors import ConfigError, check_at_least
from arpo.methods.grpo import GRPO
from arpo.methods.method import Credit, Needs, Scores, TokenScores, TokenTerms
from arpo.types import Group


@dataclass(frozen=True, kw_only=True)
class Distillation(GRPO):
    """One advantage a token: how much more likely it is to the teacher than to the policy before the update.

        A_t = c (log π_teacher - log π_old) + r A_GRPO

    The mean of the first term over sampled tokens is -c times an estimate of KL(π_old ‖ π_teacher) of each token's
    distribution. What a token does to those behind it counts nothing (a discount of 0, as in Thinking Machines'
    "On-Policy Distillation" of October 2025). Both distributions are those at the sampling temperature.

    Args:
        teacher_weight: c.
        reward_weight: r; at 0 no reward counts, and a group that failed as a whole teaches as much as any.

    Raises:
        ConfigError: When a weight is below 0, or the teacher's is 0; see also `GRPO`.
    """

    asks: ClassVar[Needs] = Needs(logprobs=True, teacher=True)

    teacher_weight: float = 1.0
    reward_weight: float = 0.0
    aggregation: Aggregation = "token"

    def __post_init__(self) -> None:
        check_at_least(0, teacher_weight=self.teacher_weight, reward_weight=self.reward_weight)
        if self.teacher_weight == 0:
            raise ConfigError("teacher_weight=0 asks a teacher for nothing: leave method=distillation out")
        super().__post_init__()

    @property
    @override
    def learns_alone(self) -> bool:
        return True

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        assert scores is not None, "needs.scores"
        rewarded = super().credits(groups)
        return [
            [self._credit(*pair) for pair in zip(*rows, strict=True)] for rows in zip(rewarded, scores, strict=True)
        ]

    def _credit(self, rewarded: Credit, said: TokenScores) -> Credit:
        assert said.teacher is not None, "needs.teacher"
        return Credit(self.teacher_weight * (said.teacher - said.logprobs) + self.reward_weight * rewarded.advantages)

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        assert terms.teacher is not None, "needs.teacher"
        found = super().loss(terms)
        return TokenLoss(found.losses, found.metrics, {"kl_teacher": terms.old_logprobs - terms.teacher})
