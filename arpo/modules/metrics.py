"""The measurements of an update on its way."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from arpo.algorithms.losses import LossMetrics
from arpo.models.policy import ActionLogprobs
from arpo.types import RolloutBatch


class Averages:
    """Numbers collected under metric names; `compute` makes one number a name of them."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._weights: defaultdict[str, float] = defaultdict(float)
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._maxima: dict[str, float] = {}

    def mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add `value` with `weight` to the mean under `name`."""
        self._sums[name] += value * weight
        self._weights[name] += weight

    def total(self, name: str, value: float) -> None:
        """Add `value` to the sum under `name`."""
        self._totals[name] += value

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest `value` under `name`."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def compute(self) -> dict[str, float]:
        """Return every name with its number; a mean without weight is left out."""
        means = {name: self._sums[name] / weight for name, weight in self._weights.items() if weight > 0}
        return means | self._totals | self._maxima

    @classmethod
    def of_ranks(cls, parts: Sequence[Self]) -> Self:
        """Return the measurements of all ranks: means over everything, maxima of all, and the mean of their totals."""
        whole = cls()
        for part in parts:
            for name, weight in part._weights.items():
                whole._sums[name] += part._sums[name]
                whole._weights[name] += weight
            for name, total in part._totals.items():
                whole._totals[name] += total / len(parts)
            for name, largest in part._maxima.items():
                whole.maximum(name, largest)
        return whole


class UpdateMeter:
    """The sums of one update over its minibatches and micro-batches."""

    def __init__(self) -> None:
        self.averages = Averages()
        self.minibatches = 0
        """Minibatches of the update, all epochs together: fewer than configured where there are fewer groups."""
        self.advantages: list[float] = []
        self._loss_metrics: LossMetrics | None = None
        self._ratios: list[Tensor] = []

    def add(self, metrics: LossMetrics, output: ActionLogprobs, before: Tensor, mask: Tensor) -> None:
        """Add the measurements of one micro-batch."""
        self._add_loss(LossMetrics(**{field.name: getattr(metrics, field.name).cpu() for field in fields(metrics)}))
        self._ratios.append((output.logprobs.detach() - before).exp()[mask].cpu())
        if output.entropy is not None and mask.any():
            self.averages.mean("policy/entropy", output.entropy[mask].mean().item(), weight=mask.sum().item())

    def compare(self, trainer: Tensor, sampler: Tensor) -> None:
        """Add how far the engine's log-probabilities of one sequence are from the trainer's."""
        gaps = (trainer - sampler).abs()
        self.averages.mean("engine/logprob_gap_mean", gaps.mean().item(), weight=len(gaps))
        self.averages.maximum("engine/logprob_gap_max", gaps.max().item())

    def over_ranks(self) -> "UpdateMeter":
        """Return the measurements of all ranks, the same on each; a collective call where there are several."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return self
        parts: list[UpdateMeter] = [self] * dist.get_world_size()
        dist.all_gather_object(parts, self)
        whole = UpdateMeter()
        whole.averages = Averages.of_ranks([part.averages for part in parts])
        whole.advantages = [advantage for part in parts for advantage in part.advantages]
        whole._ratios = [ratios for part in parts for ratios in part._ratios]
        for part in parts:
            whole._add_loss(part._loss_metrics)
        return whole

    def _add_loss(self, metrics: LossMetrics | None) -> None:
        if metrics is not None:
            self._loss_metrics = metrics if self._loss_metrics is None else self._loss_metrics + metrics

    def compute(self) -> dict[str, float]:
        """Return everything by its metric name."""
        metrics = self.averages.compute()
        if self._loss_metrics is not None:
            metrics |= {f"train/{name}": value for name, value in self._loss_metrics.averages().items()}
        return metrics

    def record(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """Return what histograms show: advantage and steps of each trajectory, ratio of each trained token."""
        lengths = [len(trajectory.steps) for group in batch.groups for trajectory in group.trajectories]
        return {
            "advantage": torch.tensor(self.advantages or [0.0]),
            "ratio": torch.cat(self._ratios) if self._ratios else torch.ones(1),
            "length": torch.tensor([float(length) for length in lengths]),
        }
