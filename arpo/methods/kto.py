"""Optimisation by single judgements (KTO, arXiv 2402.01306)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import is_worth_replaying
from arpo.bounds import Positive, Threshold, checked
from arpo.errors import ConfigError
from arpo.methods.preference import Answered, Preference
from arpo.types import Trajectory


@checked
@dataclass(frozen=True, kw_only=True)
class KTO(Preference):
    """From successes and failures that need no partner: the mean of what each of a batch loses.

    A success loses λ_D (1 - σ(β (r - z))), a failure λ_U (1 - σ(β (z - r))): equation 7 without its constant λ_y. The
    reference point z = max(0, mean of r), an estimate of KL(π ‖ π_ref) without a gradient (section 4.1), is made as
    TRL makes it: of trajectories that see what one of the batch has seen, and say what the one before it has said
    (`mismatched`); where both said the same, it is the one before that.

    Args:
        desirable_weight: Weight of successes, λ_D. The paper keeps λ_D times their number within 1 to 4/3 of λ_U times
            the number of failures.
        undesirable_weight: Weight of failures, λ_U.
        success_threshold: A trajectory whose reward, task and format together, lies above it is desirable.
    """

    least_examples: ClassVar[int] = 2

    desirable_weight: Positive = 1.0
    undesirable_weight: Positive = 1.0
    success_threshold: Threshold = 0.5

    @override
    def extra_trajectories(self, batch: Sequence[Trajectory], answered: Answered) -> list[Trajectory]:
        return [mismatched(*pair, answered) for pair in mismatches(batch)]

    @override
    def loss(
        self, log_ratios: Tensor, batch: Sequence[Trajectory], extra: Tensor | None = None
    ) -> tuple[Tensor, Mapping[str, float]]:
        if len(batch) < self.least_examples:
            raise ConfigError(
                "module=kto compares each trajectory with another one of its batch, and there is a batch of "
                f"{len(batch)}: its data must give at least 2"
            )
        worth = [is_worth_replaying(trajectory, threshold=self.success_threshold) for trajectory in batch]
        desirable = torch.tensor(worth, device=log_ratios.device)
        # Where all responses are the same, the reference point is that of the start.
        baseline = log_ratios.new_zeros(()) if extra is None else extra.detach().mean().clamp(min=0)
        gains = self.beta * (log_ratios - baseline)
        # 1 - σ(x) = σ(-x), which keeps its digits where σ(x) is near 1.
        good, bad = self.desirable_weight * (-gains).sigmoid(), self.undesirable_weight * gains.sigmoid()
        losses = torch.where(desirable, good, bad)
        metrics = {"train/kl_baseline": baseline.item(), "train/desirable": desirable.float().mean().item()}
        return losses.mean(), metrics | self.rewards(log_ratios, desirable)


def mismatches(batch: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Return each trajectory of a batch with the nearest one before it, in a circle, that said something else.

    Two that said the same, as far as both go on, are no mismatch: what one has said is then what the other said where
    it stood. A trajectory from which all others are no different is left out.
    """
    found: list[tuple[Trajectory, Trajectory]] = []
    for place, here in enumerate(batch):
        for other in (batch[place - back] for back in range(1, len(batch))):
            pairs = zip(here.exchanges, other.exchanges, strict=False)
            if any(one.response_ids != another.response_ids for one, another in pairs):
                found.append((here, other))
                break
    return found


def mismatched(shown: Trajectory, said: Trajectory, answered: Answered) -> Trajectory:
    """Return a trajectory that sees what one has seen and says what another has said, for as long as both go on."""
    pairs = zip(shown.steps, said.steps, strict=False)
    steps = tuple(replace(here, response=there.response, patch="") for here, there in pairs)
    return answered(replace(shown, steps=steps), said.exchanges[: len(steps)])
