"""From the verdicts on trajectories to advantages: rewards, returns of steps and tokens, comparison within a group."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arpo.bounds import checked
from arpo.types import Group, Trajectory

Spread = Literal["none", "sample", "population"]
Estimator = Literal["grpo", "step_grpo", "dr_grpo", "rloo", "pass_at_k"]
Deviation = Literal["sample", "population"]
EPSILON = 1e-6
"""Keeps `relative` finite where the numbers hardly differ."""


def trajectory_reward(trajectory: Trajectory, *, format_weight: float) -> float:
    """Return the reward of a trajectory: r = r_task + w · r_format (arXiv 2505.16282, section 3.4, equation 2).

    The task reward is in [0, 1]; the format reward is -1 when a response did not parse, else 0. The paper adds
    the two (w = 1), the official code halves the second (w = 0.5).
    """
    return trajectory.task_reward + format_weight * trajectory.format_reward


def group_rewards(group: Group, *, format_weight: float) -> Float[Tensor, " group"]:
    """Return the rewards of a group's trajectories, in their order."""
    return torch.tensor([trajectory_reward(t, format_weight=format_weight) for t in group.trajectories])


def is_success(trajectory: Trajectory, *, threshold: float) -> bool:
    """Return whether the checker's reward lies above the threshold; the format reward plays no part."""
    return trajectory.task_reward > threshold


def is_worth_replaying(trajectory: Trajectory, *, threshold: float, format_weight: float = 1.0) -> bool:
    """Return whether the whole reward, task and format together, lies above the threshold of a success.

    An episode that solved its task and then failed to parse has the reward 1 - 1 = 0: among failures of reward 0 it
    has no advantage, and beside a partial credit it would be pushed down. A reward above the threshold lies above
    that of every trajectory that is no success, so replaying it always pulls towards the success.
    """
    return trajectory_reward(trajectory, format_weight=format_weight) > threshold


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
    implementations go on with the critic's value of the state that was reached. Values are those before each step or
    token. At λ = 1 the advantage is the return less the value, at 0 it looks one step ahead.
    """
    following = torch.cat([values[1:], values.new_zeros(1)])
    return discounted_returns(rewards + discount * following - values, discount=discount * gae_lambda)


def explained_variance(values: Float[Tensor, " n"], returns: Float[Tensor, " n"]) -> float | None:
    """Return 1 - Var(R - V) / Var(R): 1 where a critic predicts every return, 0 where it predicts their mean alone.

    It is negative where the critic is worse than that, and None where all returns are equal.
    """
    if bool((returns == returns[0]).all()):
        return None
    return float(1 - (returns - values).double().var(correction=0) / returns.double().var(correction=0))


def relative(
    numbers: Float[Tensor, " n"], *, std: Spread, among: Float[Tensor, " m"] | None = None
) -> Float[Tensor, " n"]:
    """Return numbers less a mean, divided by a standard deviation where `std` wants one.

    Numbers that are all equal say nothing about each other: they are exactly 0, and so is a number alone. (verl 0.9.1
    and UI-S1's code leave a number alone as it is, with mean 0 and deviation 1.) Mean and deviation are of the numbers
    `among`, in which each stands as often as it counts.
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


@checked
def group_advantages(
    rewards: Float[Tensor, " group"],
    *,
    estimator: Estimator = "grpo",
    std: Deviation = "population",
    steps: Int[Tensor, " group"] | None = None,
) -> Float[Tensor, " group"]:
    """Return one advantage a trajectory, relative to the other trajectories of its group.

    With μ and σ the mean and the standard deviation of the group's G rewards:

    * `grpo`: A_i = (r_i - μ) / (σ + ε) (arXiv 2402.03300, section 4.1.2; arXiv 2505.16282, section 3.1).
    * `step_grpo`: the same, with μ and σ over the steps of the group instead of its trajectories: a trajectory of n
      steps counts n times (DART, arXiv 2509.23866). Long failures weigh more in what is average.
    * `dr_grpo`: A_i = r_i - μ (arXiv 2503.20783, section 3.2): a hard and an easy task weigh the same.
    * `rloo`: A_i = r_i - mean of the others' rewards (arXiv 2402.14740, section 3).
    * `pass_at_k`: the best gets its lead over the second best, all others 0 (arXiv 2503.19595).

    A group whose rewards are all equal says nothing about the policy: its advantages are exactly 0, not rounding
    noise divided by ε. A group of one is such a group.

    Of σ, `population` divides by G (the paper), `sample` by G - 1 (the official code); of `step_grpo` likewise, with
    the steps of the group for G: `population` is DART's paper, `sample` its code. It alone reads the number of steps
    of each trajectory, and cannot do without.
    """
    if len(rewards) == 0:
        raise ValueError("a group without trajectories has no advantages; drop the group before this point")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError(
            f"rewards must be finite, got {rewards.tolist()}; an episode without a reward is dropped, not scored"
        )
    if bool((rewards == rewards[0]).all()):
        return torch.zeros_like(rewards)
    match estimator:
        case "grpo":
            return relative(rewards, std=std)
        case "step_grpo":
            if steps is None:
                raise ValueError("step_grpo weighs a trajectory by its steps: give steps")
            return relative(rewards, std=std, among=rewards.repeat_interleave(steps))
        case "dr_grpo":
            return relative(rewards, std="none")
        case "rloo":
            # r_i - (G μ - r_i) / (G - 1) = (r_i - μ) G / (G - 1)
            return relative(rewards, std="none") * (len(rewards) / (len(rewards) - 1))
        case "pass_at_k":
            best = torch.topk(rewards, k=2)
            advantages = torch.zeros_like(rewards)
            advantages[best.indices[0]] = best.values[0] - best.values[1]
            return advantages
