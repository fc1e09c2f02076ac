import asyncio

import pytest

from arpo.errors import ConfigError, EngineError
from arpo.inference.scripted import ScriptedEngine
from arpo.models.tokenization import ChatTokenizer
from tests.inference.conftest import Questions, together


def test_it_answers_what_the_function_says(questions: Questions, chat: ChatTokenizer) -> None:
    engine = ScriptedEngine(chat, lambda request: f"Action: type(content='{request.sampling.seed}')")
    (response,) = together(engine.generate(questions.ask(seed=5, max_tokens=64)))
    assert chat.decode(response.token_ids) == "Action: type(content='5')"
    assert response.token_ids[-1] == chat.end_of_turn_id
    assert response.finish_reason == "stop"


def test_every_nth_request_fails(questions: Questions, chat: ChatTokenizer) -> None:
    engine = ScriptedEngine(chat, lambda request: "Action: wait()", fail_every=3)

    async def ask_six() -> list[object]:
        return await asyncio.gather(*(engine.generate(questions.ask()) for _ in range(6)), return_exceptions=True)

    assert [isinstance(answer, EngineError) for answer in asyncio.run(ask_six())] == [False, False, True] * 2


def test_updates_are_counted_and_read_to_the_end(chat: ChatTokenizer) -> None:
    engine = ScriptedEngine(chat, lambda request: "Action: wait()")
    tensors = iter([])
    asyncio.run(engine.update_weights(tensors, 3))
    assert (engine.updates, engine.policy_version) == (1, 3)


def test_a_closed_engine_answers_no_more(questions: Questions, chat: ChatTokenizer) -> None:
    engine = ScriptedEngine(chat, lambda request: "Action: wait()")
    asyncio.run(engine.close())
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate(questions.ask()))


@pytest.mark.parametrize("wrong", [{"latency_s": -1.0}, {"fail_every": -1}])
def test_negative_numbers_are_refused(chat: ChatTokenizer, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        ScriptedEngine(chat, lambda request: "", **wrong)
