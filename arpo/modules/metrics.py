"""The measurements of an update."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from arpo.algorithms.losses import CorrectionWeights, LossMetrics, TokenLoss, importance_ratio
from arpo.methods.method import Credit
from arpo.models.policy import ActionLogprobs
from arpo.models.tokenization import Span
from arpo.modules.minibatch import Key, Sample
from arpo.rollout.hooks import is_single_process
from arpo.rollout.storage import NUMBERS, UpdatedGroup, UpdateRecord
from arpo.types import RolloutBatch, Trajectory

Number = float | Tensor
"""A number on the host, or one still on a device."""


class Averages:
    """Numbers collected under metric names, on their device until `compute` makes one number a name of them."""

    def __init__(self) -> None:
        self._sums: dict[str, Number] = {}
        self._weights: dict[str, Number] = {}
        self._totals: dict[str, Number] = {}
        self._maxima: dict[str, Number] = {}

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
        collections = (self._sums, self._weights, self._totals, self._maxima)
        waiting = [
            (numbers, name, number)
            for numbers in collections
            for name, number in numbers.items()
            if isinstance(number, Tensor)
        ]
        values = torch.stack([number for *_, number in waiting]).tolist() if waiting else []
        for (numbers, name, _), value in zip(waiting, values, strict=True):
            numbers[name] = value

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
    """The measurements of one update: averages over its micro-batches, and numbers of each of its tokens."""

    def __init__(self) -> None:
        self.averages = Averages()
        self._loss_metrics: LossMetrics | None = None
        self._rows: dict[str, dict[Key, Tensor]] = {}
        self._whole = True
        """Whether all rows are on the host."""

    def add(
        self,
        loss: TokenLoss,
        output: ActionLogprobs,
        mask: Tensor,
        correction: CorrectionWeights | None = None,
        fresh: Tensor | None = None,
    ) -> None:
        """Add the averages of one micro-batch; a correction's over the tokens that are `fresh`, not replayed."""
        if correction is not None and fresh is not None:
            _weigh(self.averages, "policy/weight", correction.weights, fresh)
            self.averages.part("policy/weight_cut", torch.where(fresh, correction.cut, 0.0).sum(), fresh.sum())
        self._add_loss(loss.metrics)
        measured = {f"train/{name}": numbers for name, numbers in loss.measured.items()}
        if output.entropy is not None:
            measured["policy/entropy"] = output.entropy
        for name, numbers in measured.items():
            self.averages.part(name, torch.where(mask, numbers, 0.0).sum(), mask.sum())

    def note(self, samples: Sequence[Sample], **numbers: Sequence[Tensor] | Tensor | None) -> None:
        """Record numbers of the sampled tokens of some sequences, a row each; later ones replace earlier ones.

        They stay on their device until `read`, because a copy of each would make the host wait. The names are those of
        `arpo.rollout.storage.NUMBERS` and of `TokenScores`, and `trainer` and `sampler`, the log-probabilities before
        the update and at generation.
        """
        self._whole = False
        for name, values in numbers.items():
            if values is None:
                continue
            rows = self._rows.setdefault(name, {})
            for sample, row in zip(samples, values, strict=True):
                if not sample.filler:
                    rows[sample.key] = row.detach()[: sample.action_tokens]

    def rows(self, name: str) -> Mapping[Key, Tensor]:
        """Return one kind of number, [actions] for each sequence; empty where it was not recorded."""
        self.read()
        return self._rows.get(name, {})

    def by_trajectory(self, name: str) -> dict[tuple[int, int], Tensor]:
        """Return one kind of number for all tokens of each trajectory, [tokens], by group and member."""
        found: defaultdict[tuple[int, int], list[tuple[Span, Tensor]]] = defaultdict(list)
        for (group, member, spans), row in self.rows(name).items():
            pieces = torch.split(row, [end - start for start, end in spans])
            found[group, member] += zip(spans, pieces, strict=True)
        return {
            place: torch.cat([piece for _, piece in sorted(pieces, key=itemgetter(0))])
            for place, pieces in found.items()
        }

    def read(self) -> None:
        """Bring what is on a device to the host, in one copy for each kind of number."""
        self.averages.read()
        if (metrics := self._loss_metrics) is not None:
            on_host = {each.name: getattr(metrics, each.name).cpu() for each in fields(metrics)}
            self._loss_metrics = LossMetrics(**on_host)
        for name, rows in self._rows.items() if not self._whole else ():
            if rows:
                lengths = [len(row) for row in rows.values()]
                copied = torch.split(torch.cat(list(rows.values())).float().cpu(), lengths)
                self._rows[name] = dict(zip(rows, copied, strict=True))
        self._whole = True

    def over_ranks(self) -> "UpdateMeter":
        """Return the measurements of all ranks, the same on each; a collective call where there are several."""
        if is_single_process():
            return self
        self.read()
        parts: list[UpdateMeter] = [self] * dist.get_world_size()
        dist.all_gather_object(parts, self)
        whole = UpdateMeter()
        whole.averages = Averages.of_ranks([part.averages for part in parts])
        for part in parts:
            whole._add_loss(part._loss_metrics)
            for name, rows in part._rows.items():
                whole._rows.setdefault(name, {}).update(rows)
        return whole

    def _add_loss(self, metrics: LossMetrics | None) -> None:
        if metrics is not None:
            self._loss_metrics = metrics if self._loss_metrics is None else self._loss_metrics + metrics

    def compute(self) -> dict[str, float]:
        """Return everything by its metric name, the engine's distance from the trainer over every token once."""
        gaps, sampled = Averages(), self.rows("sampler")
        for key, trainer in self.rows("trainer").items():
            difference = trainer - sampled[key]
            gaps.part("engine/logprob_gap_mean", difference.abs().sum(), len(difference))
            gaps.maximum("engine/logprob_gap_max", difference.abs().max())
            _weigh(gaps, "policy/importance", importance_ratio(difference), torch.ones_like(difference))
        metrics = self.averages.compute() | gaps.compute()
        for name in ("policy/importance", "policy/weight"):
            square = metrics.pop(f"{name}_square", None)
            if square is not None:  # the effective sample size (Σw)² / Σw², as a share of the tokens
                metrics[f"{name}_ess"] = metrics[f"{name}_mean"] ** 2 / square if square > 0 else 0.0
        if self._loss_metrics is not None:
            metrics |= {f"train/{name}": value for name, value in self._loss_metrics.averages().items()}
        return metrics

    def record(self, batch: RolloutBatch, credits: Sequence[Sequence[Credit]]) -> UpdateRecord:
        """Return the record of the update, from the batch as it was learned from and its credits."""
        members = [
            ((number, position), trajectory)
            for number, group in enumerate(batch.groups)
            for position, trajectory in enumerate(group.trajectories)
        ]
        # In double precision, in which the mean of equal numbers is that number.
        means = [credit.advantages.double().mean().item() for row in credits for credit in row]
        return UpdateRecord(
            iteration=batch.iteration,
            policy_version=batch.policy_version,
            groups=tuple(
                UpdatedGroup(group.task.id, tuple(trajectory.id for trajectory in group.trajectories), group.injected)
                for group in batch.groups
            ),
            left_out=tuple(trajectory.id for group in batch.leftovers for trajectory in group.trajectories),
            advantages=np.array(means, dtype=np.float32),
            offsets=np.cumsum([0, *(trajectory.action_tokens for _, trajectory in members)], dtype=np.int64),
            numbers={name: self._concatenated(members, name) for name in NUMBERS if self.rows(name)},
        )

    def _concatenated(self, members: Sequence[tuple[tuple[int, int], Trajectory]], name: str) -> np.ndarray:
        """Return one kind of number of all tokens, NaN where there is none."""
        found = {place: torch.full((trajectory.action_tokens,), torch.nan) for place, trajectory in members}
        for (group, member, spans), row in self.rows(name).items():
            found[group, member][torch.cat([torch.arange(*span) for span in spans])] = row
        return torch.cat(list(found.values())).numpy()


def _weigh(averages: Averages, name: str, weights: Tensor, mask: Tensor) -> None:
    weights = torch.where(mask.bool(), weights, 0.0)
    averages.part(f"{name}_mean", weights.sum(), mask.sum())
    averages.part(f"{name}_square", weights.square().sum(), mask.sum())
    averages.maximum(f"{name}_max", weights.max())


def _kept(number: Number) -> Number:
    """Return a number as it is collected: with the precision that it would have on the host."""
    return number.detach().double() if isinstance(number, Tensor) else number
