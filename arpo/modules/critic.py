"""The critics to choose among: what says before each token what to expect, from the state that predicts the token."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from arpo.errors import check_at_least

MakeCritic = Callable[[int], nn.Module]
"""Makes a critic of states with so many numbers: a module from [tokens, numbers] to [tokens, 1]."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A critic that is a linear function of the states; it starts at 0."""

    def __call__(self, width: int) -> nn.Module:
        """Return a critic of states with so many numbers."""
        return _silent(nn.Linear(width, 1))


@dataclass(frozen=True, slots=True)
class TwoLayer:
    """A critic with one layer of GELUs between the states and its value; it starts at 0.

    Raises:
        ConfigError: When the layer has no numbers.
    """

    hidden: int = 256
    """Numbers of the layer between."""
    seed: int = 0
    """Of that layer's weights at the start, uniform in ±1/√width."""

    def __post_init__(self) -> None:
        check_at_least(1, hidden=self.hidden)

    def __call__(self, width: int) -> nn.Module:
        """Return a critic of states with so many numbers."""
        first, generator = nn.Linear(width, self.hidden), torch.Generator().manual_seed(self.seed)
        with torch.no_grad():
            for parameter in first.parameters():
                parameter.uniform_(-(width**-0.5), width**-0.5, generator=generator)
        return nn.Sequential(first, nn.GELU(), _silent(nn.Linear(self.hidden, 1)))


def _silent(layer: nn.Linear) -> nn.Linear:
    """Let a layer say 0 of everything."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


LINEAR = Linear()
