"""The samples of an optimizer step, cut from a rollout batch, on one rank or on many."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from arpo.methods.method import Credit
from arpo.models.tokenization import ChatTokenizer, TokenizedTrajectory, tokenize
from arpo.rollout.hooks import is_single_process, scatter_object
from arpo.types import Group

EVEN_TOKENS = 65_000
"""Length at which attention costs a 7B as much as its weights do, forward: a token needs 2 x 6.5e9 operations for the
weights of the blocks, and 2 x 28 layers x 3,584 for each token before it, which is half the length in the mean."""


Key = tuple[int, int, int]
"""The place of a sequence in the batch: its group, the member of the group, and the sampled tokens of that trajectory
that come before its own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to learn from."""

    tokens: TokenizedTrajectory
    screenshots: Mapping[str, bytes]
    """PNG bytes by SHA-256, at least those of `tokens`."""
    advantages: Float[Tensor, " actions"]
    """What each of its sampled tokens is to learn: how much better it was than what could be expected."""
    returns: Float[Tensor, " actions"] | None = None
    """What a critic should have said before each of them; None without a critic."""
    teacher: Float[Tensor, " actions"] | None = None
    """Their log-probabilities under the teacher; None without one."""
    replayed: bool = False
    """Whether it came from the replay buffer."""
    group: int = 0
    """The number of its group in the batch."""
    member: int = 0
    """The position of its trajectory in the group."""
    start: int = 0
    """Sampled tokens of its trajectory that come before its own."""
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
    def teaches(self) -> bool:
        """Whether its policy term has a gradient: some token of it has an advantage."""
        return bool(self.advantages.any())

    @property
    def key(self) -> Key:
        """Its place in the batch, on whatever rank it is."""
        return self.group, self.member, self.start

    def credited(self, credit: Credit) -> "Sample":
        """Return the sample with its part of the credit of its trajectory."""
        own = slice(self.start, self.start + self.action_tokens)
        returns = None if credit.returns is None else credit.returns[own]
        return replace(self, advantages=credit.advantages[own], returns=returns)

    def selected(self) -> Tensor:
        """Return 1 for each sampled token of a step that is trained and 0 for the others, [actions]."""
        lengths = torch.tensor(self.tokens.step_lengths)
        trained = torch.ones(len(lengths)) if self.trained is None else torch.tensor(self.trained).float()
        return trained.repeat_interleave(lengths)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The samples of one optimizer step, or one rank's share of them, with the sizes of the whole."""

    samples: tuple[Sample, ...]
    sequences: int
    """Sequences of the whole minibatch, over all ranks, those without advantage included."""
    action_tokens: int
    """Sampled tokens of the whole minibatch, likewise."""


def check_credits(groups: Sequence[Group], credits: Sequence[Sequence[Credit]]) -> None:
    """Check that a method gave each sampled token of each trajectory one number of each kind."""
    for group, row in zip(groups, credits, strict=True):
        for trajectory, credit in zip(group.trajectories, row, strict=True):
            for name, numbers in (("advantages", credit.advantages), ("returns", credit.returns)):
                if numbers is not None and len(numbers) != trajectory.action_tokens:
                    raise ValueError(
                        f"credits gave {len(numbers)} {name} to a trajectory of {trajectory.action_tokens} sampled "
                        "tokens; each needs one, in their order (Credit.of_steps, Credit.of_trajectory)"
                    )


def samples_of(groups: Sequence[Group], chat: ChatTokenizer) -> list[list[Sample]]:
    """Return every sequence of each group of a batch; none of their tokens has anything to learn yet."""
    return [
        [sample for member in range(len(group.trajectories)) for sample in _sequences(group, number, member, chat)]
        for number, group in enumerate(groups)
    ]


def _sequences(group: Group, number: int, member: int, chat: ChatTokenizer) -> list[Sample]:
    """Return the sequences of one trajectory, the `member`th of the `number`th group."""
    trajectory = group.trajectories[member]
    parts = tokenize(trajectory, chat)
    lengths = [sum(tokens.step_lengths) for tokens in parts]
    return [
        Sample(
            tokens,
            trajectory.screenshots,
            torch.zeros(length),
            replayed=member in group.injected,
            group=number,
            member=member,
            start=start,
        )
        for tokens, length, start in zip(parts, lengths, accumulate(lengths[:-1], initial=0), strict=True)
    ]


def split(groups: Sequence[Sequence[Sample]], count: int, seed: int) -> list[Minibatch]:
    """Shuffle whole groups into `count` minibatches of nearly equal size; fewer when there are fewer groups.

    A group stays together, so that successes and failures of one task pull at the same step.
    """
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    minibatches = []
    for start in range(min(count, len(groups))):
        samples = tuple(sample for index in order[start::count] for sample in groups[index])
        minibatches.append(Minibatch(samples, len(samples), sum(sample.action_tokens for sample in samples)))
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


def scatter(minibatches: Sequence[Minibatch] | None) -> list[Minibatch]:
    """Hand each rank its share of the minibatches that rank 0 holds; on one rank, all of them."""
    if is_single_process():
        return list(minibatches or ())
    ranks = dist.get_world_size()
    parcels: list[list[Minibatch]] | None = None
    if minibatches is not None:
        by_minibatch = [shares(minibatch, ranks) for minibatch in minibatches]
        parcels = [[dealt[rank] for dealt in by_minibatch] for rank in range(ranks)]
    return scatter_object(parcels)


def pick(minibatch: Minibatch, chunk: Sequence[int]) -> list[Sample]:
    """Return the samples of one micro-batch; a filler for an empty one."""
    return [minibatch.samples[index] for index in chunk] or [replace(minibatch.samples[0], filler=True)]


def by_sample(samples: Sequence[Sample], rows: Tensor) -> dict[Key, Tensor]:
    """Return the numbers of the sampled tokens of some sequences, [actions] each, of a row each that is padded."""
    return {sample.key: row[: sample.action_tokens] for sample, row in zip(samples, rows, strict=True)}


def inputs(samples: Sequence[Sample]) -> tuple[list[TokenizedTrajectory], dict[str, bytes]]:
    """Return the sequences of some samples, and all screenshots that they show."""
    screenshots = {key: png for sample in samples for key, png in sample.screenshots.items()}
    return [sample.tokens for sample in samples], screenshots
