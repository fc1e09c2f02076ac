"""On-policy distillation: a teacher scores each token that the policy sampled (arXiv 2306.13649, 2306.08543)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from arpo.algorithms.losses import Aggregation, TokenLoss
from arpo.bounds import NotNegative, checked
from arpo.methods.grpo import GRPO
from arpo.methods.method import Credit, Needs, Scores, TokenTerms
from arpo.types import Group


@checked
@dataclass(frozen=True, kw_only=True)
class Distillation(GRPO):
    """One advantage a token: how much more likely it is to the teacher than to the policy before the update.

        A_t = log π_teacher - log π_old + r A_GRPO

    The mean of log π_old - log π_teacher, `train/kl_teacher`, estimates the divergence KL(π_old ‖ π_teacher) of the
    tokens' distributions. What a token does to those behind it counts nothing: a discount of 0, as in Thinking
    Machines' "On-Policy Distillation" (October 2025). Both distributions are those at the sampling temperature.

    Args:
        reward_weight: r; at 0 no reward counts, and a group that failed as a whole teaches as much as any.
    """

    asks: ClassVar[Needs] = Needs(logprobs=True, teacher=True)

    reward_weight: NotNegative = 0.0
    aggregation: Aggregation = "token"

    @override
    def credits(self, groups: Sequence[Group], scores: Scores | None = None) -> list[list[Credit]]:
        assert scores is not None, "needs.scores"
        found = super().credits(groups)
        for row, said in zip(found, scores, strict=True):
            for place, (credit, each) in enumerate(zip(list(row), said, strict=True)):
                assert each.teacher is not None, "needs.teacher"
                row[place] = Credit(each.teacher - each.logprobs + self.reward_weight * credit.advantages)
        return found

    @override
    def loss(self, terms: TokenTerms) -> TokenLoss:
        assert terms.teacher is not None, "needs.teacher"
        return replace(super().loss(terms), measured={"kl_teacher": terms.old_logprobs - terms.teacher})
