"""Muon for the matrices inside a network and AdamW for all else, as one optimizer."""

from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer
from typing_extensions import override

from arpo.errors import ConfigError
from arpo.modules.base import NamedParameter, loss_of

NO_SHARDS = "needs whole matrices, and trainer=fsdp has a part of each on a rank: take trainer=ddp, or AdamW"
EMBEDDINGS = ("embed_tokens", "lm_head")
"""In the names of matrices with a row a token: a step touches few rows, and Muon would stretch those."""


class MuonWithAdamW(Optimizer):
    """Muon (arXiv 2502.16982, section 2) for matrices inside the network, AdamW (arXiv 1711.05101) for the rest.

    With AdamW, a tiny policy that is to find things on a screenshot stays on a plateau for thousands of steps: the
    difference of places is a small part of the gradient. Muon makes all directions of an update equally long, and
    the plateau goes (experiments/LOG.md). Embeddings, convolutions, norms and biases are the rest, and so is a group
    that is added later. Shards are refused: the directions are those of a matrix.

    The rate `matrix_lr` is Muon's, `lr` and `betas` are AdamW's, and the decay is that of both.
    """

    def __init__(
        self,
        parameters: Iterable[NamedParameter],
        *,
        lr: float,
        matrix_lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.01,
    ) -> None:
        matrices: list[NamedParameter] = []
        rest: list[NamedParameter] = []
        for name, parameter in parameters:
            if isinstance(parameter, DTensor):
                raise ConfigError(f"{type(self).__name__} {NO_SHARDS}")
            inside = parameter.ndim == 2 and not any(part in name for part in EMBEDDINGS)
            (matrices if inside else rest).append((name, parameter))
        self._parts: list[Optimizer] = []
        if rest:
            self._parts.append(AdamW(rest, lr=lr, betas=betas, weight_decay=weight_decay))
        if matrices:
            self._parts.append(Muon(matrices, lr=matrix_lr, weight_decay=weight_decay))
        super().__init__([part.param_groups[0] for part in self._parts], {})

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if len(self.param_groups) == len(self._parts):  # one more than those of the constructor
            self._parts.append(AdamW([param_group]))
            param_group = self._parts[-1].param_groups[0]
        super().add_param_group(param_group)

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = loss_of(closure)
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state  # ours: schedules and checkpoints know nothing else
            part.step()
        return loss
