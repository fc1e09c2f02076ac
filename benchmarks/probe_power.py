"""The smallest update in bfloat16 after which the probe tells a fresh engine from one that is a version old.

    python benchmarks/probe_power.py [--syncs 240] [--sizes 3e-4 1e-3 2e-3 4e-3]

A tiny policy that has learned to answer, trained in random directions: every step moves each weight by `size` times
the mean size of its tensor, half of the way on from the step before, as AdamW does with a noisy gradient. After every
step vLLM gets the weights and is probed. Its answers of before are those of an engine that is one version old; an
engine that stands still is watched until it is caught, and then another one from there. A sync takes a second of one
core.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from arpo.errors import WeightSyncError
from arpo.inference.engine import GenerateRequest, Response
from arpo.inference.probe import Answer, Freshness, Watch, ask, freshness, questions
from arpo.models.policy import Policy
from tests.integration.long import LongEngine, answer_logprobs, write_talker

TOLERANCE = 0.05
TOKENS = 32
MOMENTUM = 0.5


class Walk:
    """The steps of a policy in random directions."""

    def __init__(self, policy: Policy, size: float) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.steps = {p: size * p.detach().abs().mean() for p in policy.parameters()}
        self.directions = {p: self._random(p) for p in policy.parameters()}

    @torch.no_grad()
    def go(self) -> None:
        for parameter, step in self.steps.items():
            direction = MOMENTUM * self.directions[parameter] + (1 - MOMENTUM**2) ** 0.5 * self._random(parameter)
            self.directions[parameter] = direction
            parameter.add_(step * direction)

    def _random(self, parameter: torch.Tensor) -> torch.Tensor:
        return torch.randn(parameter.shape, generator=self.generator)


def opinion(policy: Policy, requests: list[GenerateRequest], responses: list[Response]) -> list[Answer]:
    with torch.no_grad():
        logprobs = answer_logprobs(policy, requests, [response.token_ids for response in responses])
    rows = logprobs.split([len(response.token_ids) for response in responses])
    return [Answer(r.token_ids, r.logprobs, tuple(row.tolist())) for r, row in zip(responses, rows, strict=True)]


@dataclass
class Found:
    """The probes of all syncs after updates of one size."""

    moves: list[float] = field(default_factory=list)
    """Of a log-probability by an update, in the mean."""
    fresh: list[Freshness] = field(default_factory=list)
    alarms: int = 0
    stale: list[Freshness] = field(default_factory=list)
    """Of an engine that is one version old, after one update."""
    still: list[int] = field(default_factory=list)
    """Updates after which an engine that stands still was caught."""


def probe_syncs(model: Path, size: float, syncs: int) -> Found:
    policy, engine, found = Policy(model, dtype="bfloat16"), LongEngine(model), Found()
    walk = Walk(policy, size)
    requests = questions(policy.chat, TOKENS, 1.0)

    def answer() -> list[Response]:
        (responses,) = asyncio.run(ask(engine, requests))
        return responses

    responses = held = answer()
    before = opinion(policy, requests, responses)
    watch, watch_held, since = Watch(), Watch(), 0
    watch.judge(before)
    watch_held.judge(before)
    for version in range(1, syncs + 1):
        walk.go()
        old = opinion(policy, requests, responses)
        found.stale.append(freshness(old, before))
        found.moves.append(mean_move(before, old))
        asyncio.run(engine.update_weights(policy.checkpoint_tensors(), version))
        responses = answer()
        before = opinion(policy, requests, responses)
        found.fresh.append(watch.judge(before))
        found.alarms += alarms(found.fresh[-1])
        since += 1
        if alarms(watch_held.judge(opinion(policy, requests, held))):
            found.still.append(since)
            held, watch_held, since = responses, Watch(), 0
            watch_held.judge(before)
    asyncio.run(engine.close())
    return found


def mean_move(before: list[Answer], now: list[Answer]) -> float:
    pairs = (zip(a.trainer, b.trainer, strict=True) for a, b in zip(before, now, strict=True))
    return fmean(abs(old - new) for pair in pairs for old, new in pair)


def alarms(probe: Freshness) -> bool:
    try:
        probe.check(TOLERANCE)
    except WeightSyncError:
        return True
    return False


def main(model: Path, syncs: int, sizes: list[float]) -> None:
    for size in sizes:
        found = probe_syncs(model, size, syncs)
        print(
            f"updates of {size:.0e} of a weight move log-probabilities by {fmean(found.moves):.4f}, "
            f"gap {fmean(probe.gap for probe in found.fresh):.4f}, tokens {found.fresh[0].compared}\n"
            f"  fresh: {found.alarms} false alarms in {syncs} syncs, lowest evidence "
            f"{min(probe.evidence for probe in found.fresh):.1f}, largest gap "
            f"{max(probe.gap for probe in found.fresh):.4f}, "
            f"proven fresh {sum(probe.judged for probe in found.fresh)} times\n"
            f"  one version old: caught {sum(map(alarms, found.stale))} times, highest evidence "
            f"{max(probe.evidence for probe in found.stale):.1f}\n"
            f"  standing still: caught {len(found.still)} times, "
            f"after {median(found.still or [0]):.0f} updates, {max(found.still, default=0)} at most",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--syncs", type=int, default=240)
    parser.add_argument("--sizes", type=float, nargs="+", default=[3e-4, 1e-3, 2e-3, 4e-3])
    parser.add_argument(
        "--model", type=Path, help="what write_talker has written; otherwise it does, in half a minute"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        main(arguments.model or write_talker(Path(directory)), arguments.syncs, arguments.sizes)
