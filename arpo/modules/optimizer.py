"""AdamW that keeps float32 master weights where a parameter has fewer bits; warm-up and a guard of its steps."""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from arpo.errors import ArpoError

log = logging.getLogger(__name__)

MAX_BAD_GRADIENTS = 3
"""Updates in a row whose gradient is not finite before the run stops."""


class MasterWeightAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) over float32 copies of the parameters that are not float32 themselves.

    At a learning rate of 1e-6 an update is far below half a unit in the last place of a bfloat16 weight, so updating
    bfloat16 weights in place would round almost every step to nothing. The copy takes the update; the parameter is
    its rounding. A float32 parameter is its own master, and then this is `torch.optim.AdamW` to the bit.

    Args:
        params: Parameters or groups, as for any optimizer.
        lr: Learning rate.
        betas: Decay of the first and second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-6,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        if lr < 0:
            raise ValueError(f"lr must not be negative, got {lr}")
        super().__init__(params, {"lr": lr})
        masters = [[self._master(p) for p in group["params"]] for group in self.param_groups]
        self._inner = torch.optim.AdamW(
            [{"params": master} for master in masters],
            lr=lr,
            betas=(betas[0], betas[1]),
            eps=eps,
            weight_decay=weight_decay,
        )

    @staticmethod
    def _master(parameter: Tensor) -> Tensor:
        if parameter.dtype == torch.float32:
            return parameter
        return parameter.detach().float().requires_grad_()

    def _pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            yield from zip(own["params"], inner["params"], strict=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # overloads
        """Update the masters from the parameters' gradients, then round them into the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for own, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner["lr"] = own["lr"]
        for parameter, master in self._pairs():
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
        self._inner.step()
        for parameter, master in self._pairs():
            if master is not parameter:
                parameter.copy_(master)
                master.grad = None
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, and the masters that are not parameters themselves."""
        masters = [None if master is parameter else master for parameter, master in self._pairs()]
        return {**super().state_dict(), "adamw": self._inner.state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        masters = state_dict["masters"]
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self._inner.load_state_dict(state_dict["adamw"])
        with torch.no_grad():
            for (parameter, master), saved in zip(self._pairs(), masters, strict=True):
                if master is not parameter:
                    master.copy_(saved)


def warmup_factor(step: int, warmup_steps: int) -> float:
    """Return the learning-rate multiplier of optimizer step `step` (from 0): linear to 1, and never 0.

    With `warmup_steps` = 0 the very first step already runs at the full rate.
    """
    return min(1.0, (step + 1) / (warmup_steps + 1))


class GradientGuard:
    """A guard against gradients that are not finite: a few are chance, many in a row are a run that diverged."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def accepts(self, norm: float) -> bool:
        """Return whether a gradient of this norm can be used.

        Raises:
            ArpoError: When it is the last of too many in a row that cannot.
        """
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
