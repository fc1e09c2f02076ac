"""The measurements of an update on its way."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from arpo.algorithms.corrections import CorrectionWeights, importance_ratio
from arpo.algorithms.losses import LossMetrics, TokenLoss
from arpo.models.policy import ActionLogprobs
from arpo.modules.token_record import Recorded, TokenRecord
from arpo.rollout.hooks import is_single_process
from arpo.types import RolloutBatch

Number = float | Tensor
"""A number on the host, or one on a device that nobody has asked for yet."""


class Averages:
    """Numbers collected under metric names; `compute` makes one number a name of them.

    Numbers of a device stay there until then: asking for each would make the host wait in every micro-batch.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Number] = {}
        self._weights: dict[str, Number] = {}
        self._totals: dict[str, Number] = {}
        self._maxima: dict[str, Number] = {}

    @property
    def _collections(self) -> tuple[dict[str, Number], ...]:
        return self._sums, self._weights, self._totals, self._maxima

    def mean(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add `value` with `weight` to the mean under `name`."""
        self.part(name, value * weight, weight)

    def part(self, name: str, total: Number, weight: Number) -> None:
        """Add `weight` values, `total` together, to the mean under `name`."""
        self._sums[name] = _kept(total) + self._sums.get(name, 0.0)
        self._weights[name] = _kept(weight) + self._weights.get(name, 0.0)

    def total(self, name: str, value: Number) -> None:
        """Add `value` to the sum under `name`."""
        self._totals[name] = _kept(value) + self._totals.get(name, 0.0)

    def maximum(self, name: str, value: Number) -> None:
        """Keep the largest `value` under `name`."""
        largest = self._maxima.get(name, -math.inf)
        on_device = isinstance(value, Tensor) or isinstance(largest, Tensor)
        self._maxima[name] = torch.as_tensor(_kept(value)).clamp(min=largest) if on_device else max(value, largest)

    def read(self) -> None:
        """Bring what is on a device to the host, all in one copy."""
        waiting = {
            (index, name): number
            for index, numbers in enumerate(self._collections)
            for name, number in numbers.items()
            if isinstance(number, Tensor)
        }
        if waiting:
            for (index, name), value in zip(waiting, torch.stack(list(waiting.values())).tolist(), strict=True):
                self._collections[index][name] = value

    def compute(self) -> dict[str, float]:
        """Return every name with its number; a mean without weight is left out."""
        self.read()
        means = {name: self._sums[name] / weight for name, weight in self._weights.items() if weight > 0}
        return {name: float(number) for name, number in (means | self._totals | self._maxima).items()}

    @classmethod
    def of_ranks(cls, parts: Sequence[Self]) -> Self:
        """Return the measurements of all ranks: means over everything, maxima of all, and the mean of their totals."""
        whole = cls()
        for part in parts:
            part.read()
            for name, weight in part._weights.items():
                whole.part(name, part._sums[name], weight)
            for name, total in part._totals.items():
                whole.total(name, total / len(parts))
            for name, largest in part._maxima.items():
                whole.maximum(name, largest)
        return whole


class UpdateMeter:
    """The sums of one update over its minibatches and micro-batches."""

    def __init__(self) -> None:
        self.averages = Averages()
        self.minibatches = 0
        """Minibatches of the update, all epochs together: fewer than configured where there are fewer groups."""
        self.tokens = TokenRecord()
        self._compared = TokenRecord()
        self._loss_metrics: LossMetrics | None = None
        self._ratios: list[tuple[Tensor, Tensor]] = []
        """The ratios of each micro-batch, and where in them a token is trained."""

    def add(self, loss: TokenLoss, output: ActionLogprobs, before: Tensor, mask: Tensor) -> None:
        """Add the measurements of one micro-batch."""
        self._add_loss(loss.metrics)
        for name, numbers in loss.measured.items():
            self.averages.part(f"train/{name}", torch.where(mask, numbers, 0.0).sum(), mask.sum())
        self._ratios.append(((output.logprobs.detach() - before).exp(), mask))
        if output.entropy is not None:
            self.averages.part("policy/entropy", torch.where(mask, output.entropy, 0.0).sum(), mask.sum())

    def compare(self, sample: Recorded, trainer: Tensor, sampler: Tensor) -> None:
        """Take the log-probabilities of a sequence, the trainer's before the update and the engine's, [actions].

        They are compared once, though several epochs and ranks may compute them.
        """
        self._compared.add([sample], trainer=trainer[None], sampler=sampler[None])

    def correct(self, correction: CorrectionWeights, mask: Tensor) -> None:
        """Add the weights of one micro-batch, of the tokens where `mask` is True."""
        _weigh(self.averages, "policy/weight", correction.weights, mask)
        self.averages.part("policy/weight_cut", torch.where(mask, correction.cut, 0.0).sum(), mask.sum())

    def _gaps(self) -> Averages:
        """Return how far the engine's log-probabilities are from the trainer's, over every token once."""
        gaps = Averages()
        sampled = self._compared.rows("sampler")
        for key, trainer in self._compared.rows("trainer").items():
            difference = trainer - sampled[key]
            gaps.part("engine/logprob_gap_mean", difference.abs().sum(), len(difference))
            gaps.maximum("engine/logprob_gap_max", difference.abs().max())
            _weigh(gaps, "policy/importance", importance_ratio(difference), torch.ones_like(difference))
        return gaps

    def read(self) -> None:
        """Bring what is on a device to the host."""
        self.averages.read()
        if self._loss_metrics is not None:
            metrics = self._loss_metrics
            self._loss_metrics = LossMetrics(
                **{field.name: getattr(metrics, field.name).cpu() for field in fields(metrics)}
            )
        self._ratios = [(ratio.cpu(), mask.cpu()) for ratio, mask in self._ratios]
        self.tokens.read()
        self._compared.read()

    def over_ranks(self) -> "UpdateMeter":
        """Return the measurements of all ranks, the same on each; a collective call where there are several."""
        if is_single_process():
            return self
        self.read()
        parts: list[UpdateMeter] = [self] * dist.get_world_size()
        dist.all_gather_object(parts, self)
        whole = UpdateMeter()
        whole.averages = Averages.of_ranks([part.averages for part in parts])
        whole._ratios = [ratios for part in parts for ratios in part._ratios]
        for part in parts:
            whole._add_loss(part._loss_metrics)
            whole.tokens.merge(part.tokens)
            whole._compared.merge(part._compared)
        return whole

    def _add_loss(self, metrics: LossMetrics | None) -> None:
        if metrics is not None:
            self._loss_metrics = metrics if self._loss_metrics is None else self._loss_metrics + metrics

    def compute(self) -> dict[str, float]:
        """Return everything by its metric name."""
        metrics = self.averages.compute() | self._gaps().compute()
        for name in ("policy/importance", "policy/weight"):
            square = metrics.pop(f"{name}_square", None)
            if square is not None:  # the effective sample size (Σw)² / Σw², as a share of the tokens
                metrics[f"{name}_ess"] = metrics[f"{name}_mean"] ** 2 / square if square > 0 else 0.0
        if self._loss_metrics is not None:
            metrics |= {f"train/{name}": value for name, value in self._loss_metrics.averages().items()}
        return metrics

    def record(self, batch: RolloutBatch) -> dict[str, Tensor]:
        """Return what histograms show: advantage of each trajectory, steps of each trajectory, ratio of each trained
        token, and the lag of each step behind the policy that learns from it."""
        self.read()
        lengths = [len(trajectory.steps) for group in batch.groups for trajectory in group.trajectories]
        return {
            "advantage": torch.tensor(list(self.tokens.mean_advantages().values()) or [0.0]),
            "ratio": torch.cat([ratio[mask] for ratio, mask in self._ratios]) if self._ratios else torch.ones(1),
            "length": torch.tensor([float(length) for length in lengths]),
            "lag": torch.tensor([float(lag) for lag in step_lags(batch)]),
        }


def step_lags(batch: RolloutBatch) -> list[int]:
    """Return how many versions behind each sampled step is; what replay put in was chosen, and is not counted."""
    return [
        batch.policy_version - step.policy_version
        for group in batch.groups
        for position, trajectory in enumerate(group.trajectories)
        if position not in group.injected
        for step in trajectory.steps
    ]


def _weigh(averages: Averages, name: str, weights: Tensor, mask: Tensor) -> None:
    weights = torch.where(mask.bool(), weights, 0.0)
    averages.part(f"{name}_mean", weights.sum(), mask.sum())
    averages.part(f"{name}_square", weights.square().sum(), mask.sum())
    averages.maximum(f"{name}_max", weights.max())


def _kept(number: Number) -> Number:
    """Return a number as it is collected: with the precision that it would have on the host."""
    return number.detach().double() if isinstance(number, Tensor) else number
