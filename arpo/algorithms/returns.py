"""Discounted returns of steps and tokens, and advantages over what a critic expected."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Spread = Literal["none", "sample", "population"]
EPSILON = 1e-6
"""Keeps `relative` finite where the numbers hardly differ."""


def discounted_returns(rewards: Float[Tensor, " n"], *, discount: float) -> Float[Tensor, " n"]:
    """Return R_t = r_t + γ R_{t+1}, with nothing after the end."""
    returns = torch.empty_like(rewards)
    following = rewards.new_zeros(())
    for place in range(len(rewards) - 1, -1, -1):
        following = rewards[place] + discount * following
        returns[place] = following
    return returns


def generalized_advantages(
    rewards: Float[Tensor, " n"], values: Float[Tensor, " n"], *, discount: float, gae_lambda: float
) -> Float[Tensor, " n"]:
    """Return A_t = δ_t + γ λ A_{t+1} with δ_t = r_t + γ V_{t+1} - V_t (GAE, arXiv 1506.02438, equation 16).

    The value after the end is 0: every trajectory ends with its verdict, also one that the step limit cut, where other
    implementations go on with the critic's value of the state that was reached.

    Args:
        rewards: r of each step or token.
        values: V before each of them, from the critic.
        discount: γ.
        gae_lambda: λ. At 1 the advantage is the return less the value, at 0 it looks one step ahead.
    """
    following = torch.cat([values[1:], values.new_zeros(1)])
    return discounted_returns(rewards + discount * following - values, discount=discount * gae_lambda)


def explained_variance(values: Float[Tensor, " n"], returns: Float[Tensor, " n"]) -> float | None:
    """Return 1 - Var(R - V) / Var(R): 1 where a critic says every return, 0 where it says no more than their mean.

    It is negative where the critic is worse than that, and None where all returns are equal.

    Args:
        values: V, what the critic said.
        returns: R, what it should have said.
    """
    if bool((returns == returns[0]).all()):
        return None
    return float(1 - (returns - values).double().var(correction=0) / returns.double().var(correction=0))


def relative(
    numbers: Float[Tensor, " n"], *, std: Spread, among: Float[Tensor, " m"] | None = None
) -> Float[Tensor, " n"]:
    """Return numbers less a mean, divided by a standard deviation where `std` wants one.

    Numbers that are all equal say nothing about each other: they are exactly 0, and so is a number alone. (verl 0.9.1
    and UI-S1's code leave a number alone as it is, with mean 0 and deviation 1.)

    Args:
        numbers: One each.
        std: Whether to divide, and by which deviation.
        among: What mean and deviation are of: the numbers, each as often as it counts; by default once.
    """
    if bool((numbers == numbers[0]).all()):
        return torch.zeros_like(numbers)
    whole = numbers if among is None else among
    centred = numbers - whole.mean()
    return centred if std == "none" else centred / (whole.std(correction=1 if std == "sample" else 0) + EPSILON)


def relative_by_key(numbers: Float[Tensor, " n"], keys: Sequence[Hashable], *, std: Spread) -> Float[Tensor, " n"]:
    """Return each number relative to those that have the same key."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    found = torch.zeros_like(numbers)
    for same in places.values():
        found[same] = relative(numbers[same], std=std)
    return found
