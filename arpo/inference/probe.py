"""The freshness probe: a few fixed questions after a weight update show whether the engine serves the new weights.

Every probe asks the same questions with the same seeds. Whatever an engine wrongly keeps from before the update
(weights, or a prefix, multimodal or encoder cache) then answers for the old weights, and two comparisons over all
tokens of the answers show it:

1. The mean gap between the engine's log-probabilities and the trainer's. Two float32 implementations of one model
   differ by about 1e-6. Two bfloat16 ones differ by 0.011 to 0.014 in the mean, and 2 to 4 % of their tokens by more
   than 0.1, so that the largest gap of a few tokens says nothing there, while the mean of a hundred tokens hardly
   moves. A gap above the tolerance means that the engine serves another model.
2. The evidence for the new weights against the old ones, because one update in bfloat16 may move log-probabilities by
   less than the tolerance. At token i the engine says e_i, the trainer says n_i and said o_i with the old weights.
   Evidence is Wilcoxon's signed-rank statistic (Biometrics Bulletin 1, 1945), in standard deviations:

       d_i = |e_i - o_i| - |e_i - n_i|,  T = sum_i sign(d_i) rank(|d_i|) / sqrt(sum_i rank(|d_i|)^2)

   If the update changed nothing but what was rounded, n_i and o_i are two draws of the same noise, and every sign is a
   fair coin, whatever the size and the shape of the noise: P(T <= -t) <= exp(-t^2 / 2) (Hoeffding, 1963). A fresh
   engine's T is larger the more the update changed, a stale engine's is as much smaller. Below -6 the engine is stale;
   a fresh one gets there once in 6e7 probes. Above 6 it is proven fresh.

Between the two the update was too small to be judged. The old answers are then kept for the next probe, so that
updates add up until they can be judged: an engine that stands still is caught sooner or later.

The second comparison needs no old weights: a seed gives the same ids until an update changes one of them, and for
those ids the trainer's log-probabilities of before are known from an earlier probe.
"""

import asyncio
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import Any

from PIL import Image

from arpo.agent.prompt import Prompt
from arpo.errors import WeightSyncError
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response, Sampler, Sampling
from arpo.models.tokenization import ChatTokenizer
from arpo.types import Outcome, Step, Trajectory, screenshot_key

INSTRUCTIONS = tuple(
    f"{verb} the {thing}."
    for verb in ("Click", "Find", "Open", "Close", "Select", "Drag", "Copy", "Read")
    for thing in ("blue button", "search field", "third item of the list", "last page")
)
"""Thirty-two, because the evidence grows with the root of the number of tokens, and a trained policy writes few."""

DEVIATIONS = 6.0
"""Of the evidence from nought, at which a probe is judged; the bound on a wrong one is exp(-18) = 1.5e-8."""

FEWEST_TOKENS = 48
"""With fewer the evidence never reaches six deviations: at n tokens it is at most sqrt(1.5 n (n + 1) / (2 n + 1))."""


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
    evidence: float = 0.0
    """For the new weights where it is positive, for the old ones where it is negative, in standard deviations."""
    compared: int = 0
    """Number of tokens that the probe before has too."""

    @property
    def judged(self) -> bool:
        """Whether the evidence suffices."""
        return abs(self.evidence) >= DEVIATIONS

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
        if self.evidence <= -DEVIATIONS:
            raise WeightSyncError(
                f"after the weight update {who} is nearer to the trainer's old weights than to the new ones: the "
                f"evidence of {self.compared} tokens is {-self.evidence:.1f} standard deviations, "
                f"{DEVIATIONS:.0f} is enough. {causes}"
            )


class Watch:
    """The watch over one replica: its probes, each compared with the last one that could be judged.

    Attributes:
        unjudged: Number of updates since then.
    """

    def __init__(self) -> None:
        self.unjudged = 0
        self._before: Sequence[Answer | None] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return built-ins from which `of_state` makes the same watch."""
        return {"unjudged": self.unjudged, "before": [answer and astuple(answer) for answer in self._before]}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Watch":
        """Return the watch that gave `state`."""
        watch = cls()
        watch.unjudged = state["unjudged"]
        watch._before = [answer and Answer(*map(tuple, answer)) for answer in state["before"]]
        return watch

    def judge(self, now: Sequence[Answer | None]) -> Freshness:
        """Return what the answers of a probe say, and remember them if later ones are to be compared with them."""
        found = freshness(now, self._before)
        self.unjudged = 0 if found.judged or not self._before else self.unjudged + 1
        # Where other ids are sampled by now, the old answers would never be judged.
        if found.judged or found.compared < FEWEST_TOKENS:
            self._before = now
        return found


def freshness(now: Sequence[Answer | None], before: Sequence[Answer | None] = ()) -> Freshness:
    """Compare the answers of a probe with the trainer's opinion, and with those of a probe before.

    Args:
        now: One answer for each question; None where the trainer has no opinion.
        before: The answers of an earlier probe to the same questions; empty at the first probe.
    """
    gaps = [gap for answer in now if answer is not None for gap in answer.gaps]
    nearer = [
        abs(engine - old) - abs(engine - new)
        for answer, previous in zip(now, before, strict=False)
        if answer is not None and previous is not None
        for engine, new, old in _shared(answer, previous)
    ]
    return Freshness(fmean(gaps), max(gaps), _signed_rank(nearer), len(nearer))


def _signed_rank(differences: Sequence[float]) -> float:
    """Return Wilcoxon's signed-rank statistic, divided by its standard deviation if all signs are fair coins."""
    ranked = sorted(filter(None, differences), key=abs)  # what is no difference has no sign
    n = len(ranked)
    signed = sum(math.copysign(rank, difference) for rank, difference in enumerate(ranked, 1))
    return signed / math.sqrt(n * (n + 1) * (2 * n + 1) / 6) if n else 0.0


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
