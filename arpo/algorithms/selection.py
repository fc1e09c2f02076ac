"""Selections of the tokens or steps that are worth a gradient: those where the policy was undecided.

A selection is a mask for `policy_loss(weights=mask.float())`; the loss still counts the tokens that it drops.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def high_entropy_tokens(
    entropies: Float[Tensor, "batch actions"],
    mask: Bool[Tensor, "batch actions"],
    *,
    keep_fraction: float,
) -> Bool[Tensor, "batch actions"]:
    """Keep the action tokens of highest entropy: H_t ≥ the (1 - keep_fraction) quantile of all action tokens.

    The "forking tokens" of arXiv 2506.01939, section 5.1, with the quantile interpolated linearly as in TRL.

    Raises:
        ValueError: When `keep_fraction` is not in (0, 1].
    """
    return mask & (entropies >= _threshold(entropies[mask], keep_fraction))


def high_entropy_steps(
    entropies: Float[Tensor, "batch actions"],
    mask: Bool[Tensor, "batch actions"],
    step_index: Int[Tensor, "batch actions"],
    *,
    keep_fraction: float = 0.8,
) -> Bool[Tensor, "batch actions"]:
    """Keep whole steps of highest entropy, over the trajectories of one group (DART, arXiv 2509.23866).

    H_step = mean of H_t over the step's tokens; a step stays when it reaches the (1 - keep_fraction) quantile of all
    steps of the group.

    Args:
        entropies: Of the action tokens, one row a trajectory of the group.
        mask: True on action tokens.
        step_index: The step that a token belongs to, counted from 0 within its row; any number on padding.
        keep_fraction: Share of steps to keep; DART keeps 0.8.

    Raises:
        ValueError: When `keep_fraction` is not in (0, 1].
    """
    steps = torch.where(mask, step_index, 0)  # padding adds nothing to step 0
    sums = torch.zeros_like(entropies).scatter_add(1, steps, torch.where(mask, entropies, 0.0))
    counts = torch.zeros_like(entropies).scatter_add(1, steps, mask.to(entropies.dtype))
    means = sums / counts.clamp(min=1)
    kept = means >= _threshold(means[counts > 0], keep_fraction)
    return mask & kept.gather(1, steps)


def _threshold(entropies: Tensor, keep_fraction: float) -> Tensor:
    if not 0 < keep_fraction <= 1:
        raise ValueError(f"keep_fraction must lie in (0, 1], got {keep_fraction}; 1 keeps everything")
    if entropies.numel() == 0:
        return torch.zeros((), dtype=entropies.dtype, device=entropies.device)
    return torch.quantile(entropies, 1 - keep_fraction)
