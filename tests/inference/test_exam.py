"""The examination of replicas: the first one's answers and the trainer's opinion of them judge all of them."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from arpo.errors import WeightSyncError
from arpo.inference.engine import GenerateRequest, Response, Sampling
from arpo.inference.exam import Exam
from arpo.inference.probe import Watch

QUESTIONS = [GenerateRequest((1,), (), Sampling(seed=seed)) for seed in range(4)]
OPINIONS = [[-1.0, -2.0, -3.0, -4.0]] * 4


class Fixed:
    """Samples the same ids with the trainer's log-probabilities, but for an error."""

    def __init__(self, ids: Sequence[int] = (5, 6, 7, 8), error: float = 0.0) -> None:
        self.response = Response(tuple(ids), tuple(value + error for value in OPINIONS[0][: len(ids)]), "stop", 1)

    async def generate(self, request: GenerateRequest) -> Response:
        return self.response


def exam(tolerance: float = 1e-4) -> Exam:
    return Exam(QUESTIONS, tolerance, defaultdict(Watch), fleet=True)


def examined(given: Exam, *replicas: Fixed) -> list[BaseException | None]:
    """What the replicas hear, one after the other; the trainer judges what the first one answers."""

    async def scene() -> list[BaseException | None]:
        update: Future[None] = Future()
        first = asyncio.create_task(given(0, replicas[0]))
        responses = await asyncio.wrap_future(given.first_answers(update))
        assert responses == [replicas[0].response] * 4
        given.judge(OPINIONS)
        rest = [asyncio.create_task(given(number, replica)) for number, replica in enumerate(replicas[1:], 1)]
        return list(await asyncio.gather(first, *rest, return_exceptions=True))

    return asyncio.run(scene())


def test_the_trainer_is_asked_once_for_all_replicas() -> None:
    given = exam()
    assert examined(given, Fixed(), Fixed(error=5e-5)) == [None, None]
    assert [found.gap for found in given.unread()] == [0.0, pytest.approx(5e-5)]
    assert not list(given.unread())  # each once


def test_a_replica_with_other_log_probabilities_is_named() -> None:
    passed, failed = examined(exam(), Fixed(), Fixed(error=0.01))
    assert passed is None
    assert isinstance(failed, WeightSyncError)
    assert str(failed).startswith("after the weight update engine 1 of the fleet's log-probabilities differ")


def test_a_replica_is_judged_up_to_the_first_id_that_differs() -> None:
    # The third log-probability would be wrong: it is of another id.
    other = Fixed((5, 6, 9))
    other.response = Response((5, 6, 9), (-1.0, -2.0, -9.0), "stop", 1)
    given = exam()
    assert examined(given, Fixed(), other) == [None, None]
    assert [found.largest_gap for found in given.unread()] == [0.0, 0.0]


@pytest.mark.parametrize(("ids", "passes"), [((5,), True), ((9, 6, 7, 8), False)])
def test_a_replica_that_samples_other_ids_does_not_pass(ids: tuple[int, ...], passes: bool) -> None:
    # Of the same 4 x 4 tokens the first shares 4, a quarter, and the second none.
    _, heard = examined(exam(), Fixed(), Fixed(ids))
    assert (heard is None) == passes
    if not passes:
        assert "only 0 of the same 16 tokens, 25% is the least" in str(heard)


def test_an_update_that_ends_before_anyone_was_asked_gives_nothing_to_judge() -> None:
    update: Future[None] = Future()
    update.set_exception(WeightSyncError("broken"))
    assert exam().first_answers(update).result(timeout=0) == []
