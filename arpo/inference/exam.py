"""The examination of replicas, one after the other, by a trainer that is asked once for each policy version.

Every replica answers the same questions with the same seeds (`arpo.inference.probe`). The trainer says what it thinks
of the answers of the first one, right after its update, on all ranks together. Replicas with the same weights sample
the same ids but for ties that floating point breaks otherwise, so these opinions judge the other replicas too, up to
the first id of each answer that differs: one that is updated or restarted while the trainer is already in the middle
of its next step needs no trainer.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from arpo.errors import WeightSyncError
from arpo.inference.engine import GenerateRequest, Response, Sampler
from arpo.inference.probe import Answer, Freshness, Watch

LEAST_SHARED = 0.25
"""Share of the first replica's tokens that another one must sample too. Two bfloat16 engines with the same weights
differ at about one id of a hundred, and share 85 % of answers of 32 tokens."""


class Exam:
    """The examination of one policy version, which every replica passes before it serves it.

    Two threads meet here: the engine's event loop awaits the exam of each replica, and the trainer takes the
    `first_answers` and says what it thinks of them.

    Args:
        requests: The questions.
        tolerance: Largest mean gap of log-probabilities that is accepted, in nats.
        watches: The watch over each replica, by its number, from one policy version to the next.
        fleet: Whether there may be several replicas; for messages.

    Attributes:
        requests: The questions.
    """

    def __init__(
        self, requests: Sequence[GenerateRequest], tolerance: float, watches: Mapping[int, Watch], *, fleet: bool
    ) -> None:
        self.requests = requests
        self._unread: deque[Freshness] = deque()
        self._tolerance = tolerance
        self._watches = watches
        self._fleet = fleet
        self._first: Future[list[Response]] = Future()
        self._opinions: Future[Sequence[Sequence[float]]] = Future()

    async def __call__(self, number: int, replica: Sampler) -> None:
        """Examine a replica.

        Raises:
            WeightSyncError: If it does not serve the trainer's weights.
        """
        responses = list(await asyncio.gather(*(replica.generate(request) for request in self.requests)))
        self._answered_first(responses)
        # Shielded, because others wait for the opinions too.
        opinions = await asyncio.shield(asyncio.wrap_future(self._opinions))
        first = self._first.result()
        answers = [
            _judged(response, one.token_ids, opinion)
            for response, one, opinion in zip(responses, first, opinions, strict=True)
        ]
        who = f"engine {number} of the fleet" if self._fleet else "the engine"
        _check_shared(answers, first, who)
        found = self._watches[number].judge(answers)
        found.check(self._tolerance, who)
        self._unread.append(found)

    def first_answers(self, update: "Future[None]") -> "Future[list[Response]]":
        """Return the future of the answers that the trainer is to judge; of none if the update ends before."""
        update.add_done_callback(lambda _: self._answered_first([]))
        return self._first

    def unread(self) -> Iterator[Freshness]:
        """Yield what the examinations found, each once; any thread may call it."""
        while self._unread:
            yield self._unread.popleft()

    def judge(self, opinions: Sequence[Sequence[float]]) -> None:
        """Take the trainer's log-probabilities of each token of the first answers."""
        self._opinions.set_result(opinions)

    def _answered_first(self, responses: list[Response]) -> None:
        with suppress(InvalidStateError):  # another replica was earlier, or the end of the update
            self._first.set_result(responses)


def _judged(response: Response, ids: Sequence[int], opinion: Sequence[float]) -> Answer | None:
    """Return an answer up to its first id on which there is no opinion; None if that is the very first."""
    shared = 0
    for ours, theirs in zip(response.token_ids, ids, strict=False):  # up to the end of the shorter one
        if ours != theirs:
            break
        shared += 1
    if not shared:
        return None
    return Answer(response.token_ids[:shared], response.logprobs[:shared], tuple(opinion[:shared]))


def _check_shared(answers: Sequence[Answer | None], first: Sequence[Response], who: str) -> None:
    shared = sum(len(answer.token_ids) for answer in answers if answer is not None)
    tokens = sum(len(response.token_ids) for response in first)
    if shared < LEAST_SHARED * tokens:
        raise WeightSyncError(
            f"after the weight update {who} answers otherwise than the first engine: with the same seeds it sampled "
            f"only {shared} of the same {tokens} tokens, {LEAST_SHARED:.0%} is the least. It serves old weights, or "
            "kept a prefix, multimodal or encoder cache"
        )
