import asyncio
import math

import pytest

from arpo.errors import WeightSyncError
from arpo.inference.probe import check_probe, logprob_gap
from arpo.inference.scripted import ScriptedEngine
from arpo.models.tokenization import ChatTokenizer
from tests.inference.conftest import Questions


def test_the_gap_is_the_largest_difference() -> None:
    # |-1 + 1.5| = 0.5, |-2 + 2| = 0, |-3 + 2.25| = 0.75
    assert logprob_gap([-1.0, -2.0, -3.0], [-1.5, -2.0, -2.25]) == 0.75


def test_a_gap_that_is_not_a_number_is_not_hidden_by_others() -> None:
    assert math.isnan(logprob_gap([-1.0, math.nan, -3.0], [-1.0, -2.0, -9.0]))


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([-1.0], [-1.0, -2.0])])
def test_nothing_to_compare_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=f"got {len(ours)} from the engine and {len(theirs)} from the trainer"):
        logprob_gap(ours, theirs)


def test_a_gap_up_to_the_tolerance_passes() -> None:
    check_probe(1e-4, 1e-4)


@pytest.mark.parametrize("gap", [2e-4, math.inf, math.nan])
def test_a_larger_gap_stops_the_run_and_says_why(gap: float) -> None:
    with pytest.raises(WeightSyncError, match=r"allowed is 0\.0001.*cache"):
        check_probe(gap, 1e-4)


@pytest.mark.parametrize("sticky_cache", [False, True])
def test_a_cache_from_before_the_update_is_caught(
    questions: Questions, chat: ChatTokenizer, sticky_cache: bool
) -> None:
    engine = ScriptedEngine(chat, lambda request: "Action: wait()", sticky_cache=sticky_cache)
    honest = ScriptedEngine(chat, lambda request: "Action: wait()")
    request = questions.ask()

    async def gap_after_update() -> float:
        await engine.generate(request)
        for each in (engine, honest):
            await each.update_weights([], 1)
        return logprob_gap((await engine.generate(request)).logprobs, (await honest.generate(request)).logprobs)

    gap = asyncio.run(gap_after_update())
    assert (gap > 1e-4) == sticky_cache
