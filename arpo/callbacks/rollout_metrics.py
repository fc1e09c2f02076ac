"""Metrics of a rollout, measured as it was collected."""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

import lightning as L
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.types import Group, Outcome, RolloutBatch

TRUNCATED = (Outcome.MAX_STEPS, Outcome.CONTEXT_FULL)


class RolloutMetrics(RolloutCallback):
    """Log of `rollout/…`, `group/…` and everything that the collector measured.

    It stands before replay injection in the list of callbacks, so that its numbers are of what the policy did.
    """

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        threshold = runtime_of(trainer).settings.success_threshold
        metrics = batch_metrics(batch.groups, success_threshold=threshold, rewards=PolicyModule.of(module).rewards)
        module.log_dict(batch.metrics | metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)


def batch_metrics(
    groups: Sequence[Group], *, success_threshold: float, rewards: Callable[[Group], Float[Tensor, " group"]]
) -> dict[str, float]:
    """Return the metrics of collected groups by name; shares are in [0, 1], and every outcome has its share.

    Args:
        groups: At least one, each with at least one trajectory.
        success_threshold: A trajectory with a greater task reward is a success.
        rewards: Gives what the trajectories of a group have earned in the update, which `group/degenerate` (the
            share of groups in which all earned the same) and `group/reward_std` are of.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not trajectories:
        raise ValueError("a rollout without a trajectory has no metrics; the collector never gives one")
    outcomes = Counter(trajectory.outcome for trajectory in trajectories)
    kinds = Counter(step.parse_error for trajectory in trajectories for step in trajectory.steps if step.parse_error)
    successes = [[is_success(t, threshold=success_threshold) for t in group.trajectories] for group in groups]
    deviations = [pstdev(rewards(group).tolist()) for group in groups]
    count = len(trajectories)
    metrics = {
        "rollout/success_rate": sum(map(sum, successes)) / count,
        "rollout/task_reward": fmean(t.task_reward for t in trajectories),
        "rollout/format_reward": fmean(t.format_reward for t in trajectories),
        "rollout/steps": fmean(len(t.steps) for t in trajectories),
        "rollout/tokens_per_step": sum(t.action_tokens for t in trajectories)
        / sum(len(t.steps) for t in trajectories),
        "rollout/truncated": sum(outcomes[outcome] for outcome in TRUNCATED) / count,
        "rollout/parse_error": fmean(any(step.parse_error for step in t.steps) for t in trajectories),
        "group/count": float(len(groups)),
        "group/size": count / len(groups),
        "group/all_failed": fmean(not any(row) for row in successes),
        "group/all_succeeded": fmean(all(row) for row in successes),
        "group/degenerate": fmean(deviation == 0 for deviation in deviations),
        "group/reward_std": fmean(deviations),
    }
    metrics |= {f"rollout/outcome/{outcome.value}": outcomes[outcome] / count for outcome in Outcome}
    metrics |= {f"rollout/parse_error/{kind}": number / count for kind, number in sorted(kinds.items())}
    return metrics
