"""Advantages of the trajectories of one group, from nothing but their rewards."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arpo.algorithms.returns import relative
from arpo.errors import check_one_of

Estimator = Literal["grpo", "step_grpo", "dr_grpo", "rloo", "pass_at_k"]
Deviation = Literal["sample", "population"]


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

    Args:
        rewards: One reward a trajectory.
        estimator: Which of the formulas above.
        std: σ of `grpo`: `population` divides by G (the paper), `sample` by G - 1 (the official code). Of `step_grpo`
            likewise, with the steps of the group for G: `population` is DART's paper, `sample` its code.
        steps: Number of steps of each trajectory; `step_grpo` alone reads it, and cannot do without.
    """
    _validate(rewards, estimator, std)
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


def _validate(rewards: Tensor, estimator: str, std: str) -> None:
    if len(rewards) == 0:
        raise ValueError("a group without trajectories has no advantages; drop the group before this point")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError(
            f"rewards must be finite, got {rewards.tolist()}; an episode without a reward is dropped, not scored"
        )
    check_one_of(Estimator, estimator=estimator)
    check_one_of(Deviation, std=std)
