"""The screenshots of an update."""

import os
from collections.abc import Sequence

from arpo.modules.minibatch import Minibatch

MOST_PROCESSES = 8
"""Processes of a rank that decode screenshots: eight make some 35 screenshots of 1080p a second."""


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
