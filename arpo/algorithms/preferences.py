"""Losses of offline learning from judged trajectories: DPO on pairs, KTO on single ones.

All of them see a trajectory as one number, its log-ratio r = log π(y|x) - log π_ref(y|x): the sum over every token
that was sampled in it. Losses are given one a pair or one a trajectory, not averaged.
"""

from jaxtyping import Bool, Float
from torch import Tensor, where
from torch.nn.functional import logsigmoid


def dpo_losses(
    chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"], *, beta: float
) -> Float[Tensor, " pairs"]:
    """Return -log σ(β (r_w - r_l)) of each pair (arXiv 2305.18290, equation 7).

    Args:
        chosen: Log-ratios r_w of the better trajectories.
        rejected: Log-ratios r_l of the worse ones, in the same order.
        beta: Weight of the implicit KL term: the larger, the closer to the reference.
    """
    return -logsigmoid(beta * (chosen - rejected))


def kto_losses(
    log_ratios: Float[Tensor, " batch"],
    desirable: Bool[Tensor, " batch"],
    *,
    baseline: Float[Tensor, ""],
    beta: float,
    desirable_weight: float,
    undesirable_weight: float,
) -> Float[Tensor, " batch"]:
    """Return λ_D (1 - σ(β (r - z))) of desirable trajectories and λ_U (1 - σ(β (z - r))) of the others.

    It is equation 7 of arXiv 2402.01306 without its constant λ_y.

    Args:
        log_ratios: Log-ratio r of each trajectory.
        desirable: True where it is to become more likely.
        baseline: Reference point z, of `kto_baseline`.
        beta: How fast a gain or a loss saturates.
        desirable_weight: λ_D.
        undesirable_weight: λ_U.
    """
    gains = beta * (log_ratios - baseline.detach())
    # 1 - σ(x) = σ(-x), which keeps its digits where σ(x) is near 1.
    return where(desirable, desirable_weight * (-gains).sigmoid(), undesirable_weight * gains.sigmoid())


def kto_baseline(mismatched: Float[Tensor, " batch"]) -> Float[Tensor, ""]:
    """Return the reference point z = max(0, mean of r), an estimate of KL(π ‖ π_ref) (arXiv 2402.01306, section 4.1).

    It carries no gradient.

    Args:
        mismatched: Log-ratios of trajectories that say in one situation what was said in another.
    """
    return mismatched.detach().mean().clamp(min=0)
