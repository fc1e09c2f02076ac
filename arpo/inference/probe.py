"""The freshness probe: a few fixed questions after a weight update show whether the engine serves the new weights.

Every probe asks the same questions with the same seeds. Whatever an engine wrongly keeps from before the update
(weights, or a prefix, multimodal or encoder cache) then answers for the old weights, and two comparisons over all
tokens of the answers show it:

1. The mean gap between the engine's log-probabilities and the trainer's. Two float32 implementations of one model
   differ by about 1e-6. Two bfloat16 ones differ by 0.011 to 0.014 in the mean, and 2 to 4 % of their tokens by more
   than 0.1, so that the largest gap of a few tokens says nothing there, while the mean of a hundred tokens hardly
   moves. A gap above the tolerance means that the engine serves another model.
2. A count of the tokens at which the engine is nearer to the trainer's weights of the probe before than to its new
   ones. One update in bfloat16 may move log-probabilities by less than the tolerance, and then a stale engine passes
   the first comparison. Noise without a lean to one side is as likely to favour the old weights as the new ones,
   whatever its size: where the engine is fresh, the count out of n tokens is at most that of n tosses of a fair coin,
   n/2 with a standard deviation of sqrt(n)/2. A count six standard deviations above n/2 means that the engine is
   stale. At 128 tokens those are 98, which a stale engine reaches once an update moves log-probabilities by about
   twice the noise.

The second comparison needs no old weights: a seed gives the same ids until an update changes one of them, and for
those ids the trainer's log-probabilities of before are known from the probe before.
"""

import asyncio
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from PIL import Image

from arpo.agent.prompt import Prompt
from arpo.errors import WeightSyncError
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response, Sampler, Sampling
from arpo.models.tokenization import ChatTokenizer
from arpo.types import Outcome, Step, Trajectory, screenshot_key

INSTRUCTIONS = tuple(
    f"{verb} the {thing}."
    for verb in ("Click", "Find", "Open", "Close")
    for thing in ("blue button", "search field", "third item of the list", "last page")
)
"""Sixteen, because a trained policy writes few tokens, and those of one answer share what was rounded before them."""

DEVIATIONS = 6.0
"""Of the fair coin. Five would do for independent tokens (3e-7 a probe); those of one answer are not quite that."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's answer to one question, with two opinions on each of its tokens."""

    token_ids: tuple[int, ...]
    engine: tuple[float, ...]
    """The engine's log-probabilities."""
    trainer: tuple[float, ...]
    """The trainer's log-probabilities, with the weights that the engine should have."""

    def __post_init__(self) -> None:
        if not self.token_ids or not len(self.token_ids) == len(self.engine) == len(self.trainer):
            raise ValueError(
                f"an answer needs as many log-probabilities as tokens and at least one, got {len(self.token_ids)} "
                f"tokens, {len(self.engine)} from the engine and {len(self.trainer)} from the trainer"
            )

    @property
    def gaps(self) -> list[float]:
        """The distance between engine and trainer at each token."""
        return [abs(engine - trainer) for engine, trainer in zip(self.engine, self.trainer, strict=True)]


@dataclass(frozen=True, slots=True)
class Freshness:
    """The result of one probe."""

    gap: float
    """Mean distance between the log-probabilities of engine and trainer; NaN where one of them is."""
    largest_gap: float
    """Distance at the worst token."""
    older: int
    """Number of tokens at which the engine is nearer to the trainer's weights of the probe before."""
    compared: int
    """Number of tokens that both probes have, and whose log-probability the update changed."""

    def check(self, tolerance: float, who: str = "the engine") -> None:
        """Stop the run if the engine does not serve the trainer's weights.

        Args:
            tolerance: Largest mean gap that is accepted, in nats.
            who: Whose answers they were, for the message.

        Raises:
            WeightSyncError: If the gap is above the tolerance or not a number, or if the engine is stale.
        """
        causes = "It serves old weights, or kept a prefix, multimodal or encoder cache"
        if not self.gap <= tolerance:  # a NaN is not above anything either
            raise WeightSyncError(
                f"after the weight update {who}'s log-probabilities differ from the trainer's by {self.gap:.2g}, "
                f"allowed is {tolerance:.2g} (mean over the tokens of the probe). {causes}, or computes in another "
                "precision: use the same dtype on both sides; between bfloat16 implementations about 0.012 is normal"
            )
        if self.older > self.compared / 2 + DEVIATIONS * math.sqrt(self.compared) / 2:
            raise WeightSyncError(
                f"after the weight update {who} is nearer to the trainer's previous weights than to the new ones "
                f"at {self.older} of {self.compared} tokens. {causes}"
            )


def freshness(now: Sequence[Answer], before: Sequence[Answer] = ()) -> Freshness:
    """Compare the answers of a probe with the trainer's opinion, and with those of the probe before.

    Args:
        now: One answer for each question.
        before: The answers of the previous probe to the same questions; empty at the first probe.
    """
    gaps = [gap for answer in now for gap in answer.gaps]
    older = [
        abs(engine - old) < abs(engine - new)
        for answer, previous in zip(now, before, strict=False)
        for engine, new, old in _shared(answer, previous)
        if new != old
    ]
    return Freshness(fmean(gaps), max(gaps), sum(older), len(older))


def _shared(answer: Answer, previous: Answer) -> Iterator[tuple[float, float, float]]:
    """Yield the log-probabilities of engine, trainer now and trainer before, up to the first id that differs."""
    # The lists end with the shorter answer.
    for number, (token, old_token) in enumerate(zip(answer.token_ids, previous.token_ids, strict=False)):
        if token != old_token:
            return
        yield answer.engine[number], answer.trainer[number], previous.trainer[number]


def questions(chat: ChatTokenizer, max_tokens: int, temperature: float) -> list[GenerateRequest]:
    """Return what every probe asks: one picture, several instructions, each with a seed of its own."""
    prompt, png = Prompt.compact(), picture()
    return [
        GenerateRequest(chat.first_prompt(prompt.messages(text)), (png,), Sampling(temperature, max_tokens, seed))
        for seed, text in enumerate(INSTRUCTIONS)
    ]


def picture() -> bytes:
    """Return a fixed PNG of 112 x 112 pixels: not one colour, so that every patch says something else."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((112, 112)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


async def ask(engine: InferenceEngine, requests: Sequence[GenerateRequest]) -> list[list[Response]]:
    """Return the responses of every replica of the engine, because each may be a stale one; it may batch them."""

    async def ask_one(replica: Sampler) -> list[Response]:
        return list(await asyncio.gather(*(replica.generate(request) for request in requests)))

    return list(await asyncio.gather(*map(ask_one, engine.replicas)))


def probe_trajectory(request: GenerateRequest, response: Response) -> Trajectory:
    """Return a question with one picture and its response in the form that the trainer reads."""
    png = request.images[0]
    key = screenshot_key(png)
    width, height = Image.open(io.BytesIO(png)).size
    step = Step(
        screenshot=key,
        width=width,
        height=height,
        prompt_ids=request.prompt_ids,
        response_ids=response.token_ids,
        sampler_logprobs=response.logprobs,
        policy_version=response.policy_version,
        response="",
    )
    return Trajectory(
        id="probe",
        task_id="probe",
        domain="",
        instruction="",
        seed=request.sampling.seed,
        steps=(step,),
        outcome=Outcome.MAX_STEPS,
        task_reward=0.0,
        format_reward=0.0,
        screenshots={key: png},
    )
