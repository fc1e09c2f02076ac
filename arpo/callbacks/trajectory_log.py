"""Episodes as text, and histograms of the update, in TensorBoard; `python -m arpo view` shows their screenshots."""

import logging

import lightning as L
import numpy as np
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.errors import check_at_least
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.types import Group, RolloutBatch, Step, Trajectory

log = logging.getLogger(__name__)

MAX_RESPONSE = 2000
"""Characters of a response that the text shows."""


class TrajectoryLog(RolloutCallback):
    """Log of a success, a failure and a replayed trajectory every n iterations, as text.

    It stands after replay injection in the list of callbacks: what it shows is what the update learns from.

    Args:
        every_n_iterations: How often; the first iteration is always shown.
    """

    def __init__(self, *, every_n_iterations: int = 10) -> None:
        check_at_least(1, every_n_iterations=every_n_iterations)
        self.every_n_iterations = every_n_iterations

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        writers = writers_of(trainer)
        if not writers or not self._is_due(batch.iteration):
            return
        threshold = runtime_of(trainer).settings.success_threshold
        for kind, trajectory in choose(batch.groups, success_threshold=threshold).items():
            text = as_markdown(trajectory, replayed=kind == "replayed")
            for writer in writers:
                writer.add_text(f"trajectory/{kind}", text, batch.iteration + 1)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        if not self._is_due(batch.iteration):
            return
        record = PolicyModule.of(pl_module).last_update
        shown = {} if record is None else {"advantage": record.advantages, "ratio": record.ratios()}
        lengths = [len(trajectory.steps) for group in batch.groups for trajectory in group.trajectories]
        shown |= {"length": np.array(lengths, dtype=float), "lag": np.array(step_lags(batch), dtype=float)}
        for writer in writers_of(trainer):
            for name, numbers in shown.items():
                if numbers.size:
                    writer.add_histogram(f"train/{name}", numbers, batch.iteration + 1)

    def _is_due(self, iteration: int) -> bool:
        return iteration == 0 or (iteration + 1) % self.every_n_iterations == 0


def step_lags(batch: RolloutBatch) -> list[int]:
    """Return how many versions behind each sampled step is; what replay put in was chosen, and is not counted."""
    return [
        batch.policy_version - step.policy_version
        for group in batch.groups
        for position, trajectory in enumerate(group.trajectories)
        if position not in group.injected
        for step in trajectory.steps
    ]


def writers_of(trainer: L.Trainer) -> list[SummaryWriter]:
    """Return the TensorBoard writers of a trainer; none on other ranks than 0."""
    if not trainer.is_global_zero:
        return []
    return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def choose(groups: list[Group], *, success_threshold: float) -> dict[str, Trajectory]:
    """Return a collected `success`, a collected `failure` and a `replayed` trajectory, the first of each there is."""
    picked: dict[str, Trajectory] = {}
    for group in groups:
        for position, trajectory in enumerate(group.trajectories):
            if position in group.injected:
                kind = "replayed"
            else:
                kind = "success" if is_success(trajectory, threshold=success_threshold) else "failure"
            picked.setdefault(kind, trajectory)
    return {kind: picked[kind] for kind in ("success", "failure", "replayed") if kind in picked}


def as_markdown(trajectory: Trajectory, *, replayed: bool = False) -> str:
    """Return an episode as text: what was asked, every response and its action, and how it ended."""
    origin, steps = "from the replay buffer" if replayed else "collected", len(trajectory.steps)
    lines = [
        f"**{_inline(trajectory.instruction or trajectory.task_id)}**",
        f"{trajectory.task_id}: task reward {trajectory.task_reward:g}, format reward {trajectory.format_reward:g}, "
        f"{trajectory.outcome.value} after {steps} step{'s' * (steps != 1)}; {origin}, "
        f"policy version {trajectory.policy_version}, `{trajectory.id}`, {trajectory.duration_s:.1f} s",
    ]
    lines += [_step_text(number, step) for number, step in enumerate(trajectory.steps, start=1)]
    return "\n\n".join(lines).encode(errors="replace").decode()  # half a surrogate pair cannot be written


def _step_text(number: int, step: Step) -> str:
    result = f"parse error: **{step.parse_error}**" if step.parse_error else f"`` {step.action or 'no action'} ``"
    response = step.response if len(step.response) <= MAX_RESPONSE else step.response[:MAX_RESPONSE] + " …"
    quoted = "\n".join(f"    {line}" for line in response.strip().splitlines())  # a block: it may hold any sign
    instead = "; an expert's answer took its place" if step.patch else ""
    return f"**{number}** {result}, {len(step.response_ids)} tokens{instead}\n\n{quoted}"


def _inline(text: str) -> str:
    return " ".join(text.split()).replace("*", "\\*")
