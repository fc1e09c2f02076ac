"""The logs of a run: how it was started and ended, metrics of each rollout, episodes as text, records of updates.

`python -m arpo view` shows the screenshots of episodes, and the records of updates.
"""

import json
import logging
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import lightning as L
import numpy as np
import psutil
import torch
from jaxtyping import Float
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from typing_extensions import override

from arpo.algorithms.rewards import is_success
from arpo.bounds import AtLeastOne, NotNegativeInt, checked
from arpo.callbacks.evaluation import Evaluation
from arpo.host.environment import recorded
from arpo.host.files import write_atomically
from arpo.modules.base import PolicyModule
from arpo.rollout.hooks import RolloutCallback, runtime_of
from arpo.rollout.storage import forget_updates, write_update
from arpo.types import Group, Outcome, RolloutBatch, Trajectory

log = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[2]
TRUNCATED = (Outcome.MAX_STEPS, Outcome.CONTEXT_FULL)
MAX_RESPONSE = 2000


class IterationAxis(L.Callback):
    """The iteration, and not Lightning's optimizer step, as the x axis of every curve: the n-th update stands at n."""

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        step = float(trainer.current_epoch + 1)  # Lightning takes a metric of this name for the x axis
        pl_module.log("step", step, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)


class RolloutMetrics(RolloutCallback):
    """Log of `rollout/…`, `group/…` and what the collector measured; it stands before replay, to be of the policy."""

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        threshold = runtime_of(trainer).settings.success_threshold
        metrics = batch_metrics(batch.groups, success_threshold=threshold, rewards=PolicyModule.of(module).rewards)
        module.log_dict(batch.metrics | metrics, on_step=False, on_epoch=True, batch_size=1, rank_zero_only=True)


def batch_metrics(
    groups: Sequence[Group], *, success_threshold: float, rewards: Callable[[Group], Float[Tensor, " group"]]
) -> dict[str, float]:
    """Return the metrics of collected groups by name; shares are in [0, 1], and every outcome has its share.

    `rewards` gives what the trajectories of a group have earned in the update, of which `group/degenerate` (the share
    of groups in which all earned the same) and `group/reward_std` are.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
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
        / max(1, sum(len(t.steps) for t in trajectories)),
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


@checked
class TrajectoryLog(RolloutCallback):
    """Log of a success, a failure and a replayed trajectory every n iterations, as text, and of the update's numbers.

    It stands after replay injection in the list of callbacks; the first iteration is always shown.
    """

    def __init__(self, *, every_n_iterations: AtLeastOne = 10) -> None:
        self.every_n_iterations = every_n_iterations

    @override
    def on_rollout_end(self, trainer: L.Trainer, module: L.LightningModule, batch: RolloutBatch) -> None:
        writers = self._writers(trainer, batch)
        if not writers:
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
        writers = self._writers(trainer, batch)
        if not writers:
            return
        record = PolicyModule.of(pl_module).last_update
        shown = {} if record is None else {"advantage": record.advantages, "ratio": record.ratios()}
        lengths = [len(trajectory.steps) for group in batch.groups for trajectory in group.trajectories]
        shown |= {"length": np.array(lengths, dtype=float), "lag": np.array(step_lags(batch), dtype=float)}
        for writer in writers:
            for name, numbers in shown.items():
                if (
                    known := numbers[np.isfinite(numbers)]
                ).size:  # an episode without a trained token has no advantage
                    writer.add_histogram(f"train/{name}", known, batch.iteration + 1)

    def _writers(self, trainer: L.Trainer, batch: RolloutBatch) -> list[SummaryWriter]:
        """Return the TensorBoard writers of a trainer; none on other ranks than 0, and where the log is not due."""
        if not trainer.is_global_zero or not _is_due(batch.iteration, self.every_n_iterations):
            return []
        return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def _is_due(iteration: int, every: int) -> bool:
    return iteration == 0 or (iteration + 1) % every == 0


def step_lags(batch: RolloutBatch) -> list[int]:
    """Return the number of versions by which each response is behind; replayed ones are not counted."""
    return [
        batch.policy_version - exchange.policy_version
        for group in batch.groups
        for position, trajectory in enumerate(group.trajectories)
        if position not in group.injected
        for exchange in trajectory.exchanges
    ]


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
    """Return an episode as text: its instruction, every response with its action, and how it ended."""
    origin, steps = "from the replay buffer" if replayed else "collected", len(trajectory.steps)
    title = " ".join((trajectory.instruction or trajectory.task_id).split()).replace("*", "\\*")
    lines = [
        f"**{title}**",
        f"{trajectory.task_id}: task reward {trajectory.task_reward:g}, format reward {trajectory.format_reward:g}, "
        f"{trajectory.outcome.value} after {steps} step{'s' * (steps != 1)}; {origin}, "
        f"policy version {trajectory.policy_version}, `{trajectory.id}`, {trajectory.duration_s:.1f} s",
    ]
    for number, step in enumerate(trajectory.steps, start=1):
        result = f"parse error: **{step.parse_error}**" if step.parse_error else f"`` {step.action or 'no action'} ``"
        instead = "; an expert's answer took its place" if step.patch else ""
        tokens = 0 if step.exchange is None else len(trajectory.exchanges[step.exchange].response_ids)
        lines.append(f"**{number}** {result}, {tokens} tokens{instead}")
        response = step.response if len(step.response) <= MAX_RESPONSE else step.response[:MAX_RESPONSE] + " …"
        # a block: it may hold any sign
        lines.append("\n".join(f"    {line}" for line in response.strip().splitlines()))
    return "\n\n".join(lines).encode(errors="replace").decode()  # half a surrogate pair cannot be written


@checked
class UpdateLog(L.Callback):
    """A file an iteration in the trajectory store, `updates/iteration_<n>.safetensors`, for `python -m arpo view`.

    It holds the groups as they were learned from, with what replay put in, the advantage of each trajectory, and of
    each token log-probability and entropy before the update and in the forward that it was learned from: numbers that
    the update computes anyway. Those after the update take one more forward, every few iterations.

    Args:
        after_every_n_iterations: How often that is; the first iteration always has it. 0 never has.
    """

    def __init__(self, *, after_every_n_iterations: NotNegativeInt = 10) -> None:
        self.after_every_n_iterations = after_every_n_iterations

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            forget_updates(runtime_of(trainer).store.root, trainer.current_epoch)

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        every = self.after_every_n_iterations
        PolicyModule.of(pl_module).measures_after = every > 0 and _is_due(batch.iteration, every)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: object, batch: RolloutBatch, batch_idx: int
    ) -> None:
        record = PolicyModule.of(pl_module).last_update
        if trainer.is_global_zero and record is not None:
            write_update(runtime_of(trainer).store.root, record)


class RunRecord(L.Callback):
    """Record `run.json` in the folder of a run: one entry for each time it was started, and how that ended."""

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / "run.json"
        self._started = _now()  # engine, browsers and demonstrations start before Lightning calls any hook
        self._entry: dict[str, Any] | None = None

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if trainer.is_global_zero and stage == "fit":
            self._entry = {"started": self._started, **provenance()}
            self._write("running")

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write("running")  # a killed run has then a time of its last iteration

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        whole = trainer.max_epochs in (None, -1) or trainer.current_epoch >= (trainer.max_epochs or 0)
        evaluated = not any(isinstance(each, Evaluation) for each in trainer.callbacks)  # type: ignore[attr-defined]
        whole = whole and (evaluated or not trainer.should_stop)  # else the evaluation at the end was left out
        self._write("finished" if whole else f"stopped after iteration {trainer.current_epoch}")

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        try:
            self._write(f"{type(exception).__name__}: {exception}")
        except OSError as error:  # a full disk, say: what ended the run must not be hidden by what followed
            log.warning("cannot write %s: %s", self.path, error)

    def _write(self, status: str) -> None:
        """Put this start's entry last, after those of earlier starts of the same run."""
        if self._entry is None:
            return
        self._entry |= {"status": status, "updated": _now()}
        earlier = json.loads(self.path.read_text(encoding="utf-8"))["starts"] if self.path.exists() else []
        starts = [entry for entry in earlier if entry["started"] != self._entry["started"]]
        write_atomically(self.path, json.dumps({"starts": [*starts, self._entry]}, indent=1))


def provenance() -> dict[str, Any]:
    """Return the command, code, packages, machine and environment of this process."""
    return {
        "command": sys.argv,
        "git": git_state(PROJECT),
        "python": platform.python_version(),
        "machine": machine(),
        "environment": recorded(os.environ),
        "packages": dict(sorted((found.metadata["Name"], found.version) for found in distributions())),
    }


def git_state(directory: Path) -> dict[str, Any] | None:
    """Return the commit of a checkout and whether files differ from it; None where there is no git checkout."""
    answers = []
    for question in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
        try:
            asked = subprocess.run(
                ["git", *question], cwd=directory, capture_output=True, encoding="utf-8", check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        answers.append(asked.stdout.strip())
    return {"commit": answers[0], "dirty": bool(answers[1])}


def machine() -> dict[str, Any]:
    """Return the system, cores, memory and GPUs of the machine."""
    return {
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
