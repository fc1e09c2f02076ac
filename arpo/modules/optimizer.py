"""The way optimizers are built, the learning rate's warm-up, and a guard of the optimizer's steps."""

import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from arpo.errors import ArpoError

log = logging.getLogger(__name__)

NamedParameter = tuple[str, torch.nn.Parameter]
MakeOptimizer = Callable[[Iterator[NamedParameter]], torch.optim.Optimizer]
"""Builds an optimizer from parameters and their names, by which some tell embeddings from matrices."""

MAX_BAD_GRADIENTS = 3
"""Updates in a row whose gradient is not finite before the run stops."""


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return what the closure of an optimizer's step computes, with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def rate_factor(step: int, *, warmup_steps: int, decay_steps: int | None = None) -> float:
    """Return the learning-rate multiplier of optimizer step `step` (from 0): linear to 1, then linear towards 0.

    With `warmup_steps` = 0 the very first step runs at the full rate. The last of `decay_steps` steps still has a
    rate, those after it have none; None keeps the full rate.
    """
    risen = min(1.0, (step + 1) / (warmup_steps + 1))
    return risen if decay_steps is None else risen * max(0.0, 1 - step / decay_steps)


class PlannedRate(LambdaLR):
    """The learning rate by the place of a step in the plan of the run, whether those before it were taken or not.

    Args:
        optimizer: What is given the rate.
        warmup_steps: See `rate_factor`, as for `decay_steps`.
        decay_steps: The steps of the plan; None keeps the full rate.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, warmup_steps: int, decay_steps: int | None) -> None:
        super().__init__(optimizer, partial(rate_factor, warmup_steps=warmup_steps, decay_steps=decay_steps))

    def move_to(self, step: int) -> None:
        """Set the rate to that of a step of the plan, from 0."""
        self.last_epoch = step
        self._last_lr = [base * factor(step) for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = rate


class GradientGuard:
    """A guard against gradients that are not finite: a few are chance, many in a row are a run that diverged."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def accepts(self, norm: float) -> bool:
        """Return whether a gradient of this norm can be used."""
        if math.isfinite(norm):
            self._in_a_row = 0
            return True
        self._in_a_row += 1
        log.warning("gradient norm is %s: this update is left out", norm)
        if self._in_a_row >= MAX_BAD_GRADIENTS:
            raise ArpoError(
                f"the gradient was not finite {MAX_BAD_GRADIENTS} times in a row: training has diverged; "
                "resume from an earlier checkpoint with a smaller learning rate"
            )
        return False
