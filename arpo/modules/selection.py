"""The choice of the steps that an update trains, by how undecided the policy was."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor

from arpo.algorithms.selection import entropy_threshold
from arpo.modules.minibatch import Key, Minibatch
from arpo.rollout.hooks import is_single_process


@dataclass(frozen=True, slots=True)
class OldPolicyCache:
    """The opinion of the policy before the first update of an iteration on its sequences."""

    logprobs: dict[Key, Tensor] = field(default_factory=dict)
    """Old log-probabilities of the sampled tokens, [actions]."""
    values: dict[Key, Tensor] = field(default_factory=dict)
    """What the critic says before each of them, [actions]; empty without one."""
    entropies: dict[Key, Tensor] = field(default_factory=dict)
    """Mean entropy of each step, [steps]; empty where nothing selects by it."""
    reference: dict[Key, Tensor] = field(default_factory=dict)
    """Log-probabilities under the reference, [actions]; empty unless it was asked before the update."""
    teacher: dict[Key, Tensor] = field(default_factory=dict)
    """Log-probabilities under the teacher, [actions]; empty without one."""

    def scores(self) -> dict[str, dict[Key, Tensor]]:
        """Return what was said of sampled tokens, by the fields of `TokenScores`."""
        named = {"values": self.values, "reference": self.reference, "teacher": self.teacher}
        return {"logprobs": self.logprobs} | {name: numbers for name, numbers in named.items() if numbers}


def select_steps(minibatch: Minibatch, entropies: Mapping[Key, Tensor], *, keep_fraction: float) -> Minibatch:
    """Return a minibatch in which each group trains its steps of highest entropy (DART, arXiv 2509.23866).

    The threshold is of all steps of a group, on whatever ranks its members are: a collective call where there are
    several. The denominators of the loss keep counting the steps that are left out.

    Args:
        minibatch: Whole groups, or a rank's share of them.
        entropies: Of each step of each sequence, under the policy before the update.
        keep_fraction: Share of a group's steps to keep.
    """
    known = {sample.key: entropies[sample.key].tolist() for sample in minibatch.samples}
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for sample in minibatch.samples:
        if not sample.filler:
            groups[sample.group] += known[sample.key]
    thresholds = {
        group: entropy_threshold(torch.tensor(steps), keep_fraction=keep_fraction).item()
        for group, steps in _of_all_ranks(groups).items()
    }
    samples = (
        replace(sample, trained=tuple(entropy >= thresholds[sample.group] for entropy in known[sample.key]))
        for sample in minibatch.samples
    )
    return replace(minibatch, samples=tuple(samples))


def _of_all_ranks(groups: Mapping[int, list[float]]) -> dict[int, list[float]]:
    if is_single_process():
        return dict(groups)
    parts: list[dict[int, list[float]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, dict(groups))
    whole: defaultdict[int, list[float]] = defaultdict(list)
    for part in parts:
        for group, steps in part.items():
            whole[group] += steps
    return dict(whole)
