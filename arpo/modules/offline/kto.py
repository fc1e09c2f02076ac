"""Optimisation by single judgements (KTO, arXiv 2402.01306)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.preferences import kto_baseline, kto_losses
from arpo.algorithms.rewards import is_worth_replaying
from arpo.errors import ConfigError, check_positive, check_threshold
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer
from arpo.modules.offline.base import Sequences
from arpo.modules.offline.preference import PreferenceModule
from arpo.modules.optimizer import MakeOptimizer
from arpo.types import Step, Trajectory


class KTOModule(PreferenceModule):
    """A policy that learns from successes and failures that need no partner: the mean of `kto_losses` over a batch.

    The reference point is estimated as TRL does it: on trajectories that see what one of the batch has seen, and say
    what the one before it has said (`mismatched`); where both said the same, it is the one before that.

    Args:
        policy: Builds the policy; called once, when Lightning asks for the model.
        optimizer: Builds the optimizer from the trainable parameters and their names.
        reference: Builds the policy that the run starts from; see `PreferenceModule`.
        desirable_weight: Weight of successes, λ_D. The paper keeps λ_D times their number within 1 to 4/3 of λ_U times
            the number of failures.
        undesirable_weight: Weight of failures, λ_U.
        success_threshold: A trajectory whose reward, task and format together, lies above it is desirable.
        beta: See `PreferenceModule`, as for all that follow.
        steps: Optimizer steps of the run.
        warmup_fraction: Part of the steps in which the learning rate rises.
        micro_batch_tokens: Padded tokens of one forward.
        max_grad_norm: Gradient norm above which the gradient is scaled down.

    Raises:
        ConfigError: When a number is out of its range.
    """

    least_examples = 2

    def __init__(  # noqa: PLR0913 - one argument a YAML key
        self,
        policy: Callable[..., Policy],
        optimizer: MakeOptimizer,
        reference: Callable[..., Policy],
        *,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        success_threshold: float = 0.5,
        beta: float,
        steps: int,
        warmup_fraction: float = 0.1,
        micro_batch_tokens: int,
        max_grad_norm: float = 1.0,
    ) -> None:
        super().__init__(
            policy,
            optimizer,
            reference,
            beta=beta,
            steps=steps,
            warmup_fraction=warmup_fraction,
            micro_batch_tokens=micro_batch_tokens,
            max_grad_norm=max_grad_norm,
        )
        check_positive(desirable_weight=desirable_weight, undesirable_weight=undesirable_weight)
        check_threshold(success_threshold=success_threshold)
        self.desirable_weight = desirable_weight
        self.undesirable_weight = undesirable_weight
        self.success_threshold = success_threshold

    @override
    def judge(self, log_ratios: Tensor, batch: Sequence[Trajectory]) -> tuple[Tensor, Mapping[str, float]]:
        if len(batch) < self.least_examples:
            raise ConfigError(
                "module=kto compares each trajectory with another one of its batch, and there is a batch of "
                f"{len(batch)}: its data must give at least 2"
            )
        threshold = self.success_threshold
        worth = [is_worth_replaying(trajectory, threshold=threshold) for trajectory in batch]
        desirable = torch.tensor(worth, device=log_ratios.device)
        baseline = kto_baseline(self._of_mismatches(batch))
        losses = kto_losses(
            log_ratios,
            desirable,
            baseline=baseline,
            beta=self.beta,
            desirable_weight=self.desirable_weight,
            undesirable_weight=self.undesirable_weight,
        )
        metrics = {"train/kl_baseline": baseline.item(), "train/desirable": desirable.float().mean().item()}
        return losses.mean(), metrics | self.rewards(log_ratios, desirable)

    def _of_mismatches(self, batch: Sequence[Trajectory]) -> Tensor:
        """Return the log-ratio of each mismatched trajectory; 0, that of the start, where a batch has none."""
        crossed = [mismatched(*pair, self.policy.chat) for pair in mismatches(batch)]
        if not crossed:
            return torch.zeros(1, device=self.device)
        return self.log_ratios(Sequences.of(crossed, self.policy.chat))


def mismatches(batch: Sequence[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Return each trajectory of a batch with the nearest one before it that said something else; the last one stands
    before the first.

    Two that said the same, as far as both go on, are no mismatch: what one has said is then what the other said where
    it stood. A trajectory from which all others are no different is left out.
    """
    found: list[tuple[Trajectory, Trajectory]] = []
    for place, here in enumerate(batch):
        others = (batch[place - back] for back in range(1, len(batch)))
        found += islice(((here, other) for other in others if _differs(here, other)), 1)
    return found


def _differs(one: Trajectory, other: Trajectory) -> bool:
    pairs = zip(one.steps, other.steps, strict=False)
    return any(here.response_ids != there.response_ids for here, there in pairs)


def mismatched(shown: Trajectory, said: Trajectory, chat: ChatTokenizer) -> Trajectory:
    """Return a trajectory that sees what one has seen and says what another has said, for as long as both go on."""
    steps: list[Step] = []
    for here, there in zip(shown.steps, said.steps, strict=False):
        steps.append(
            replace(
                here,
                prompt_ids=chat.next_prompt(steps[-1].response_ids) if steps else here.prompt_ids,
                response_ids=there.response_ids,
                sampler_logprobs=there.sampler_logprobs,
                response=there.response,
            )
        )
    return replace(shown, steps=tuple(steps))
