"""The selection of the steps that are worth a gradient: those where the policy was undecided."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor


def step_entropies(entropies: Float[Tensor, " actions"], lengths: Sequence[int]) -> Float[Tensor, " steps"]:
    """Return H of every step of a sequence: the mean entropy of its tokens (DART, arXiv 2509.23866).

    Args:
        entropies: Of every sampled token in nats, step after step.
        lengths: Sampled tokens of each step; a step without any has entropy 0.
    """
    return torch.stack([step.sum() / max(1, len(step)) for step in torch.split(entropies, list(lengths))])


def entropy_threshold(entropies: Float[Tensor, " steps"], *, keep_fraction: float) -> Float64[Tensor, ""]:
    """Return the entropy that a step must reach to be trained: the (1 - keep_fraction) quantile of a group's steps.

    The quantile is interpolated linearly, as `torch` and `numpy` do it. DART keeps 0.8 (arXiv 2509.23866:
    the 20th percentile of the group), and multiplies the whole term of a step, divergence included, by
    1[H ≥ threshold].

    It is computed in double precision: where it falls on a step, rounding must not lift it above that very step.

    Args:
        entropies: Of every step of every trajectory of the group; at least one.
        keep_fraction: Share of steps to keep, in (0, 1].
    """
    share_left_out = round(1 - keep_fraction, 12)  # 1 - 0.7 is a little more than 0.3
    return torch.quantile(entropies.double(), share_left_out)
