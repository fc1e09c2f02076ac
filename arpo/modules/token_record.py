"""The numbers of every token of an update, as the trainer computed them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

import torch
from torch import Tensor

Key = tuple[int, int, int]
"""The place of a sequence in the batch: its group, the member of the group, and its part of that trajectory."""


class Recorded(Protocol):
    """A sequence of a batch, as `arpo.modules.minibatch.Sample`."""

    @property
    def key(self) -> Key:
        """Its place."""

    @property
    def advantages(self) -> Tensor:
        """The advantage of each sampled token, [actions]."""

    @property
    def filler(self) -> bool:
        """Whether it is there for the forward alone."""

    @property
    def action_tokens(self) -> int:
        """Sampled tokens."""


class TokenRecord:
    """Advantage, log-probability and entropy of each sampled token, before, in and after an update.

    `advantages` are of every sequence. `old_logprobs` and `old_entropy` are of the policy before the update;
    `logprobs` and `entropy` of the forward from which the token was learned, the last one where there are several
    epochs; `weights` the factor of its policy term, where there is one; `after_logprobs` and `after_entropy` of the
    policy after the last optimizer step, where they were asked for. A sequence that was not computed, because its
    advantage is 0, has none of these.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[Key, Tensor]] = {}
        self._whole = True
        """Whether everything is on the host."""

    def weigh(self, samples: Iterable[Recorded]) -> None:
        """Record the advantages of some sequences."""
        self._rows.setdefault("advantages", {}).update((sample.key, sample.advantages) for sample in samples)

    def add(self, samples: Sequence[Recorded], **numbers: Tensor | None) -> None:
        """Record numbers of the sampled tokens of a micro-batch, each [samples, actions]; later ones replace earlier.

        They stay on their device until `read`, because a copy of each would make the host wait.
        """
        self._whole = False
        lengths = [sample.action_tokens for sample in samples]
        for name, values in numbers.items():
            if values is None:
                continue
            rows = self._rows.setdefault(name, {})
            for sample, length, row in zip(samples, lengths, values.detach(), strict=True):
                if not sample.filler:
                    rows[sample.key] = row[:length]

    def read(self) -> None:
        """Bring what is on a device to the host, in one copy for each kind of number."""
        if self._whole:
            return
        self._whole = True
        for name, rows in self._rows.items():
            if rows:
                lengths = [len(row) for row in rows.values()]
                copied = torch.split(torch.cat(list(rows.values())).float().cpu(), lengths)
                self._rows[name] = dict(zip(rows, copied, strict=True))

    def merge(self, other: "TokenRecord") -> None:
        """Add what another rank has recorded."""
        self._whole = self._whole and other._whole
        for name, rows in other._rows.items():
            self._rows.setdefault(name, {}).update(rows)

    def rows(self, name: str) -> Mapping[Key, Tensor]:
        """Return one kind of number, [actions] for each sequence; empty where it was not recorded."""
        self.read()
        return self._rows.get(name, {})

    def by_trajectory(self, name: str) -> dict[tuple[int, int], Tensor]:
        """Return one kind of number for all tokens of each trajectory, [tokens], by group and member."""
        found: defaultdict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for (group, member, _), row in sorted(self.rows(name).items(), key=itemgetter(0)):
            found[group, member].append(row)
        return {place: torch.cat(rows) for place, rows in found.items()}

    def mean_advantages(self) -> dict[tuple[int, int], float]:
        """Return the mean advantage of the tokens of each trajectory, by group and member."""
        # In double precision, in which the mean of equal numbers is that number.
        return {place: row.double().mean().item() for place, row in self.by_trajectory("advantages").items()}
