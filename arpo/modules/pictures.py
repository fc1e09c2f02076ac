"""The screenshots of an update: in what order it wants them, and what a frozen vision tower makes of them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import torch

from arpo.models.policy import Policy
from arpo.modules.minibatch import Minibatch

MOST_PROCESSES = 8
"""Processes of a rank that decode screenshots: eight make some 35 screenshots of 1080p a second."""

MOST_FEATURE_BYTES = 16 * 2**30
"""Bytes of visual tokens that a rank keeps on its host: those of 830 screenshots of 1080p for a 7B in bfloat16.

Where a rank would need more, the vision tower sees every screenshot in every forward."""


def wanted_screenshots(minibatches: Sequence[Minibatch]) -> dict[str, bytes]:
    """Return the PNGs by their keys in the order in which an update wants them.

    Old log-probabilities of later minibatches come first; in a minibatch, longer sequences do.
    """
    wanted: dict[str, bytes] = {}
    for minibatch in (*minibatches[1:], *minibatches[:1]):
        for sample in sorted(minibatch.samples, key=lambda sample: -sample.length):
            wanted |= {key: sample.screenshots[key] for key in sample.tokens.screenshots if key not in wanted}
    return wanted


def decoding_processes(ranks_here: int) -> int:
    """Return how many processes may decode for one of some ranks that share this machine's cores."""
    return max(1, min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // ranks_here))


@dataclass(frozen=True, slots=True)
class VisualSizes:
    """The visual tokens of screenshots: how many each has, and the bytes of all."""

    tokens: list[int]
    nbytes: int

    @classmethod
    def of(cls, screenshots: Mapping[str, bytes], policy: Policy) -> Self:
        """Return the sizes of what a policy's vision tower makes of some screenshots."""
        merged = policy.images.merge_size**2
        tokens = [prod(policy.images.grid(key, png)) // merged for key, png in screenshots.items()]
        width = policy.family.visual_width(policy.model.config)
        return cls(tokens, sum(tokens) * width * next(policy.vision.parameters()).element_size())


def chunk_by_tokens(tokens: Sequence[int], most: int) -> list[list[int]]:
    """Return positions in `tokens`, in order, in runs of `most` tokens together at most; a larger one stands alone.

    Pictures of unequal size need no padding in the vision tower.
    """
    runs: list[list[int]] = []
    room = 0
    for position, count in enumerate(tokens):
        if count > room or not runs:
            runs.append([])
            room = most
        runs[-1].append(position)
        room -= count
    return runs


def by_tower(policies: Sequence[Policy]) -> list[list[Policy]]:
    """Return the policies whose vision tower nothing trains, those with the same tower together."""
    groups: list[list[Policy]] = []
    for policy in policies:
        if not policy.frozen_vision:
            continue
        for group in groups:
            if _same_tower(group[0], policy):
                group.append(policy)
                break
        else:
            groups.append([policy])
    return groups


def _same_tower(one: Policy, other: Policy) -> bool:
    first, second = list(one.vision.parameters()), list(other.vision.parameters())
    alike = (a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, second, strict=False))
    return len(first) == len(second) and all(alike)
