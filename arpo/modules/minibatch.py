"""The samples of an optimizer step and their screenshots, cut from a rollout batch, on one rank or on many."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64
from torch import Tensor

from arpo.methods.method import Credit
from arpo.models.policy import Policy
from arpo.models.tokenization import ChatTokenizer, Span, TokenizedTrajectory, tokenize
from arpo.rollout.hooks import is_single_process, scatter_object
from arpo.types import Group

EVEN_TOKENS = 65_000
"""Length at which attention costs a 7B as much as its weights do, forward: a token needs 2 x 6.5e9 operations for the
weights of the blocks, and 2 x 28 layers x 3,584 for each token before it, which is half the length in the mean."""

Key = tuple[int, int, tuple[Span, ...]]
"""The place of a sequence in the batch: its group, the member of the group, and those tokens of it that it trains."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to learn from."""

    tokens: TokenizedTrajectory
    screenshots: Mapping[str, bytes]
    """PNG bytes by SHA-256, at least those of `tokens`."""
    advantages: Float[Tensor, " actions"]
    """How much better each of its sampled tokens was than could be expected."""
    returns: Float[Tensor, " actions"] | None = None
    """The target of a critic before each of them; None without a critic."""
    teacher: Float[Tensor, " actions"] | None = None
    """Their log-probabilities under the teacher; None without one."""
    whole: int | None = None
    """Sampled tokens of its whole episode, over all of its sequences; None where this is the only one."""
    replayed: bool = False
    group: int = 0
    """The number of its group in the batch."""
    member: int = 0
    """The position of its trajectory in the group."""
    trained: tuple[bool, ...] | None = None
    """Whether each of its steps is trained; None where all are, which is unless steps are selected."""
    filler: bool = False
    """Whether it only keeps the ranks in step: it is computed, and its loss is multiplied by zero."""

    @property
    def length(self) -> int:
        """Tokens of the whole sequence."""
        return len(self.tokens)

    @property
    def cost(self) -> float:
        """The work of a forward pass, in tokens of a short sequence."""
        return self.length * (1 + self.length / EVEN_TOKENS)

    @property
    def action_tokens(self) -> int:
        """Sampled tokens."""
        return int(self.tokens.action_mask.sum())

    @property
    def episode_tokens(self) -> int:
        """Sampled tokens of its episode, those of its other sequences among them."""
        return self.action_tokens if self.whole is None else self.whole

    @property
    def teaches(self) -> bool:
        """Whether its policy term has a gradient: some token of it has an advantage."""
        return bool(self.advantages.any())

    @property
    def key(self) -> Key:
        """Its place in the batch, on whatever rank it is."""
        return self.group, self.member, self.tokens.spans

    def credited(self, credit: Credit) -> "Sample":
        """Return the sample with its part of the credit of its trajectory."""
        own = torch.cat([torch.arange(*span) for span in self.tokens.spans])
        returns = None if credit.returns is None else credit.returns[own]
        return replace(self, advantages=credit.advantages[own], returns=returns)

    def selected(self) -> Tensor:
        """Return 1 for each sampled token of a step that is trained and 0 for the others, [actions]."""
        lengths = torch.tensor(self.tokens.step_lengths)
        trained = torch.ones(len(lengths)) if self.trained is None else torch.tensor(self.trained).float()
        return trained.repeat_interleave(lengths)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The samples of one optimizer step, or one rank's share of them, with the sizes of the whole.

    These are of all ranks, and count what has no advantage.
    """

    samples: tuple[Sample, ...]
    sequences: int
    action_tokens: int
    episodes: float
    """Those of the pass that it belongs to, divided by its minibatches, and so the same in each of them."""

    def credited(self, credits: Sequence[Sequence[Credit]], teacher: Mapping[Key, Tensor]) -> "Minibatch":
        """Return the minibatch with the credits of a batch, and with what a teacher says of it, if there is one."""
        samples = (sample.credited(credits[sample.group][sample.member]) for sample in self.samples)
        return replace(self, samples=tuple(replace(each, teacher=teacher.get(each.key)) for each in samples))


def samples_of(
    groups: Sequence[Group], chat: ChatTokenizer, credits: Sequence[Sequence[Credit]] | None = None
) -> list[list[Sample]]:
    """Return every sequence of each group of a batch, with its advantages: 0 where there are no credits yet."""
    found: list[list[Sample]] = []
    for number, group in enumerate(groups):
        samples: list[Sample] = []
        for member, trajectory in enumerate(group.trajectories):
            for tokens in tokenize(trajectory, chat):
                nothing = torch.zeros(len(tokens.sampler_logprobs))
                shown, replayed = trajectory.screenshots, member in group.injected
                sample = Sample(tokens, shown, nothing, replayed=replayed, group=number, member=member)
                sample = replace(sample, whole=trajectory.action_tokens)
                samples.append(sample if credits is None else sample.credited(credits[number][member]))
        found.append(samples)
    return found


def split(groups: Sequence[Sequence[Sample]], count: int, seed: int) -> list[Minibatch]:
    """Shuffle whole groups into `count` minibatches of nearly equal size; fewer when there are fewer groups.

    A group stays together, so that successes and failures of one task pull at the same step. An episode counts if it
    has a sequence, which takes a trained token.
    """
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    minibatches, count = [], min(count, len(groups))
    episodes = sum(len({sample.member for sample in group}) for group in groups)
    for start in range(count):
        samples = tuple(sample for index in order[start::count] for sample in groups[index])
        tokens = sum(sample.action_tokens for sample in samples)
        minibatches.append(Minibatch(samples, len(samples), tokens, episodes / count))
    return minibatches


def without_zero_advantage(minibatch: Minibatch) -> Minibatch:
    """Leave out samples whose gradient is exactly zero; the denominators keep counting them."""
    return replace(minibatch, samples=tuple(sample for sample in minibatch.samples if sample.teaches))


def without_flat_groups(minibatch: Minibatch) -> Minibatch:
    """Leave out the groups in which no sample has an advantage; the denominators keep counting them."""
    steep = {sample.group for sample in minibatch.samples if sample.teaches}
    return replace(minibatch, samples=tuple(sample for sample in minibatch.samples if sample.group in steep))


def without_untrained(minibatch: Minibatch) -> Minibatch:
    """Leave out the samples of which no step is trained; the denominators keep counting them.

    Of a rank that would keep none, one becomes a filler.
    """
    kept = tuple(sample for sample in minibatch.samples if sample.trained is None or any(sample.trained))
    return replace(minibatch, samples=kept or _filler(minibatch))


def step_entropies(entropies: Float[Tensor, " actions"], lengths: Sequence[int]) -> Float[Tensor, " steps"]:
    """Return H of every step of a sequence: the mean entropy of its tokens, 0 without any (DART, arXiv 2509.23866)."""
    return torch.stack([step.sum() / max(1, len(step)) for step in torch.split(entropies, list(lengths))])


def entropy_threshold(entropies: Float[Tensor, " steps"], *, keep_fraction: float) -> Float64[Tensor, ""]:
    """Return the entropy that a step must reach to be trained: the (1 - keep_fraction) quantile of a group's steps.

    DART keeps 0.8 (arXiv 2509.23866: the 20th percentile of the group), and multiplies the whole term of a step,
    divergence included, by 1[H ≥ threshold]. The quantile is interpolated linearly, in double precision: where it
    falls on a step, rounding must not lift it above that very step.
    """
    share_left_out = round(1 - keep_fraction, 12)  # 1 - 0.7 is a little more than 0.3
    return torch.quantile(entropies.double(), share_left_out)


def select_steps(minibatch: Minibatch, entropies: Mapping[Key, Tensor], *, keep_fraction: float) -> Minibatch:
    """Return a minibatch in which each group trains its steps of highest entropy (DART, arXiv 2509.23866).

    The threshold is of all steps of a group, on whatever ranks its members are: a collective call where there are
    several. The denominators of the loss keep counting the steps that are left out. The entropies are of each token of
    each sequence, under the policy before the update.
    """
    known = {
        sample.key: step_entropies(entropies[sample.key], sample.tokens.step_lengths).tolist()
        for sample in minibatch.samples
    }
    own = [(sample.group, known[sample.key]) for sample in minibatch.samples if not sample.filler]
    parts = [own]
    if not is_single_process():
        parts = [own] * dist.get_world_size()
        dist.all_gather_object(parts, own)
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for group, steps in chain.from_iterable(parts):
        groups[group] += steps
    thresholds = {
        group: entropy_threshold(torch.tensor(steps), keep_fraction=keep_fraction).item()
        for group, steps in groups.items()
    }
    samples = (
        replace(sample, trained=tuple(entropy >= thresholds[sample.group] for entropy in known[sample.key]))
        for sample in minibatch.samples
    )
    return replace(minibatch, samples=tuple(samples))


def shares(minibatch: Minibatch, ranks: int) -> list[Minibatch]:
    """Deal the samples out to ranks, balanced by cost (longest first, to the lightest rank).

    A rank that would get none gets a filler, because every rank must run every forward and backward.
    """
    if not minibatch.samples:
        return [minibatch] * ranks
    dealt: list[list[Sample]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for sample in sorted(minibatch.samples, key=lambda sample: -sample.length):
        lightest = loads.index(min(loads))
        dealt[lightest].append(sample)
        loads[lightest] += sample.cost
    return [replace(minibatch, samples=tuple(samples) or _filler(minibatch)) for samples in dealt]


def _filler(minibatch: Minibatch) -> tuple[Sample, ...]:
    """Return the shortest sample as a filler; none of an empty minibatch."""
    shortest = sorted(minibatch.samples, key=lambda sample: sample.length)[:1]
    return tuple(replace(sample, filler=True) for sample in shortest)


def scatter(minibatches: Sequence[Minibatch] | None) -> tuple[list[Minibatch], dict[str, bytes]]:
    """Hand each rank its share of the minibatches that rank 0 holds, and return it with the PNGs that it shows.

    On one rank that is all of them. The PNGs are in the order in which an update wants them: old log-probabilities of
    later minibatches come first; in a minibatch, longer sequences do.
    """
    own = list(minibatches or ())
    if not is_single_process():
        ranks = dist.get_world_size()
        dealt = None if minibatches is None else [shares(minibatch, ranks) for minibatch in minibatches]
        own = scatter_object(None if dealt is None else [[each[rank] for each in dealt] for rank in range(ranks)])
    wanted: dict[str, bytes] = {}
    for minibatch in (*own[1:], *own[:1]):
        for sample in sorted(minibatch.samples, key=lambda sample: -sample.length):
            wanted |= {key: sample.screenshots[key] for key in sample.tokens.screenshots if key not in wanted}
    return own, wanted


# --- screenshots -----------------------------------------------------------------------------------------------------


def chunk_by_tokens(tokens: Sequence[int], most: int) -> list[list[int]]:
    """Return positions in `tokens`, in order, in runs of `most` tokens together at most; a larger one stands alone."""
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
        if policy.frozen_vision:
            weights = list(policy.vision.parameters())
            for group in groups:
                first = list(group[0].vision.parameters())
                same = (a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(first, weights, strict=False))
                if len(first) == len(weights) and all(same):
                    group.append(policy)
                    break
            else:
                groups.append([policy])
    return groups
