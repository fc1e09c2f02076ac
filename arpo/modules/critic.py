"""The critics to choose among: functions of the state from which the policy predicts a token. All start at 0."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from arpo.bounds import AtLeastOne, checked

MakeCritic = Callable[[int], nn.Module]
"""Makes a critic of states with so many numbers: a module from [tokens, numbers] to [tokens, 1]."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A critic that is linear in the states."""

    def __call__(self, width: int) -> nn.Module:
        """Return a critic of states with so many numbers."""
        last = nn.Linear(width, 1)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        return last


@checked
@dataclass(frozen=True, slots=True)
class TwoLayer:
    """A critic with a layer of `hidden` GELUs between, whose weights at the start are uniform in ±1/√width."""

    hidden: AtLeastOne = 256
    seed: int = 0

    def __call__(self, width: int) -> nn.Module:
        """Return a critic of states with so many numbers."""
        first, generator = nn.Linear(width, self.hidden), torch.Generator().manual_seed(self.seed)
        for parameter in first.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)
        return nn.Sequential(first, nn.GELU(), Linear()(self.hidden))


LINEAR = Linear()
