"""What every engine promises: one suite, run on each of them."""

import asyncio
import io
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arpo.errors import EngineError, EngineGoneError
from arpo.inference.engine import GenerateRequest, InferenceEngine, Response, Sampling
from arpo.inference.hf import HfEngine
from arpo.models.tokenization import ChatTokenizer
from tests.inference.conftest import Questions, Trainer, Weights, on_a_cpu_by_vllm, run, together
from tests.inference.scripted import ScriptedEngine

TOLERANCE = 1e-4
MAX_MODEL_LEN = 512
FAKE = ["scripted", pytest.param("scripted fleet", marks=[pytest.mark.ray, pytest.mark.long])]
REAL = [
    "hf",
    pytest.param("vllm", marks=pytest.mark.engine),
    pytest.param("fleet", marks=[pytest.mark.ray, pytest.mark.long]),
]


def click_or_ramble(request: GenerateRequest) -> str:
    """A short response for even seeds and one that gets cut for odd ones."""
    return "Action: wait() " * (1 + 40 * (request.sampling.seed % 2)) + str(request.sampling.seed)


def make_engine(name: str, path: Path) -> InferenceEngine:
    match name:
        case "scripted":
            return ScriptedEngine(path, click_or_ramble)
        case "hf":
            return HfEngine(path, max_model_len=MAX_MODEL_LEN)
        case "vllm":
            from arpo.inference.vllm import VllmEngine

            on_a_cpu_by_vllm(path)
            return VllmEngine(path, max_model_len=MAX_MODEL_LEN, max_num_seqs=8, max_images=4, kv_cache_gb=0.125)
        case _:
            from arpo.inference.fleet import FleetEngine

            fake = partial(ScriptedEngine, path, click_or_ramble)
            return FleetEngine(
                fake if name == "scripted fleet" else partial(HfEngine, path, max_model_len=MAX_MODEL_LEN), replicas=2
            )


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[InferenceEngine]:
    engine = make_engine(request.param, tiny_model)
    yield engine
    run(engine.close())
    run(engine.close())  # twice is once


@pytest.fixture
def engine(started: InferenceEngine) -> InferenceEngine:
    return started


@pytest.fixture
def update(engine: InferenceEngine, trainer: Trainer) -> Iterator[Callable[[Weights, int], None]]:
    """Gives weights to the engine; the first ones come back after the test."""

    def send(weights: Weights, version: int) -> None:
        run(engine.update_weights(weights.items(), version))

    yield send
    send(trainer.first_weights, 0)


every_engine = pytest.mark.parametrize("started", [*FAKE, *REAL], indirect=True)
real_engines = pytest.mark.parametrize("started", REAL, indirect=True)


@every_engine
def test_a_response_ends_with_the_end_of_turn_or_is_as_long_as_allowed(
    engine: InferenceEngine, questions: Questions, chat: ChatTokenizer
) -> None:
    # About 600 words are as good as equally likely, and 1000 numbers where a family has them, so that 64 x 64 sampled
    # ids hold some seven ends of turn, or two.
    requests = [questions.ask(seed % 4, max_tokens=64, seed=seed) for seed in range(64)]
    responses = together(*(engine.generate(request) for request in requests))
    assert {response.finish_reason for response in responses} == {"stop", "length"}
    for response in responses:
        assert len(response.logprobs) == len(response.token_ids) >= 1
        assert chat.end_of_turn_id not in response.token_ids[:-1]
        if response.finish_reason == "stop":
            assert response.token_ids[-1] == chat.end_of_turn_id
        else:
            assert len(response.token_ids) == 64
            assert response.token_ids[-1] != chat.end_of_turn_id


@every_engine
def test_forbidden_ids_are_never_sampled_and_log_probabilities_are_not_positive(
    engine: InferenceEngine, questions: Questions, chat: ChatTokenizer
) -> None:
    requests = [questions.ask(seed, max_tokens=64, seed=seed, temperature=2.0) for seed in range(16)]
    responses = together(*(engine.generate(request) for request in requests))
    assert not {token for response in responses for token in response.token_ids} & set(chat.forbidden_ids)
    assert all(logprob <= 0 for response in responses for logprob in response.logprobs)


@real_engines
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_the_trainers(
    engine: InferenceEngine, questions: Questions, trainer: Trainer, temperature: float
) -> None:
    requests = [questions.ask(n, images=1 + n % 4, temperature=temperature, seed=n) for n in range(8)]
    responses = together(*(engine.generate(request) for request in requests))
    gaps = [trainer.gap(request, response) for request, response in zip(requests, responses, strict=True)]
    assert max(gaps) < TOLERANCE


@real_engines
def test_temperature_zero_takes_the_likeliest_word(
    engine: InferenceEngine, questions: Questions, trainer: Trainer
) -> None:
    request = questions.ask(1, images=2, temperature=0.0)
    (response,) = together(engine.generate(request))
    assert tuple(trainer.distributions(request, response).argmax(-1).tolist()) == response.token_ids


@every_engine
def test_the_seed_decides_the_response(engine: InferenceEngine, questions: Questions) -> None:
    first, second, other = (together(engine.generate(questions.ask(2, images=2, seed=seed)))[0] for seed in (6, 6, 7))
    assert first.token_ids == second.token_ids
    assert first.token_ids != other.token_ids


@every_engine
def test_what_else_is_in_flight_does_not_change_a_response(engine: InferenceEngine, questions: Questions) -> None:
    requests = [questions.ask(n, images=1 + n % 4, seed=n, max_tokens=8 + n) for n in range(12)]
    at_once = together(*(engine.generate(request) for request in requests))
    one_by_one = [together(engine.generate(request))[0] for request in reversed(requests)]
    assert [r.token_ids for r in at_once] == [r.token_ids for r in reversed(one_by_one)]


@every_engine
def test_the_screenshot_matters(engine: InferenceEngine, questions: Questions) -> None:
    request = questions.ask(3, images=2, temperature=0.0)
    swapped = replace(request, images=request.images[::-1])
    one, other = together(engine.generate(request), engine.generate(swapped))
    assert one.logprobs != other.logprobs


@every_engine
def test_an_update_changes_log_probabilities_and_stamps_the_version(
    engine: InferenceEngine, questions: Questions, trainer: Trainer, update: Callable[[Weights, int], None]
) -> None:
    request = questions.ask(4, images=3, seed=4)
    (before,) = together(engine.generate(request))
    update(trainer.changed(1), 7)
    (after,) = together(engine.generate(request))
    assert (before.policy_version, after.policy_version, engine.oldest_version) == (0, 7, 7)
    assert before.logprobs != after.logprobs


@real_engines
def test_after_every_update_the_same_question_gets_the_new_weights_answer(
    engine: InferenceEngine, questions: Questions, trainer: Trainer, update: Callable[[Weights, int], None]
) -> None:
    requests = [questions.ask(n, images=1 + n, seed=n) for n in range(3)]
    together(*(engine.generate(request) for request in requests))  # fills every cache there is
    for version in (1, 2, 3):
        weights = trainer.changed(version)
        trainer.load(weights)
        update(weights, version)
        responses = together(*(engine.generate(request) for request in requests))
        gaps = [trainer.gap(request, response) for request, response in zip(requests, responses, strict=True)]
        assert max(gaps) < TOLERANCE


@real_engines
def test_an_update_waits_for_requests_in_flight_and_later_requests_wait_for_it(
    engine: InferenceEngine, questions: Questions, trainer: Trainer, update: Callable[[Weights, int], None]
) -> None:
    weights = trainer.changed(5)
    early = [questions.ask(n, images=2, seed=n, max_tokens=96) for n in range(4)]
    late = [questions.ask(n, images=2, seed=n) for n in range(4)]

    async def scene() -> list[list[object]]:
        first = [asyncio.create_task(engine.generate(request)) for request in early]
        await asyncio.sleep(0.05)
        change = asyncio.create_task(engine.update_weights(weights.items(), 9))
        await asyncio.sleep(0)
        second = [asyncio.create_task(engine.generate(request)) for request in late]
        await change
        return [await asyncio.gather(*first), await asyncio.gather(*second)]

    before, after = run(scene())
    assert [response.policy_version for response in before] == [0] * 4
    assert max(trainer.gap(q, r) for q, r in zip(early, before, strict=True)) < TOLERANCE
    trainer.load(weights)
    assert [response.policy_version for response in after] == [9] * 4
    assert max(trainer.gap(q, r) for q, r in zip(late, after, strict=True)) < TOLERANCE
    update(weights, 9)


@real_engines
@pytest.mark.usefixtures("update")
def test_conversations_with_screenshots_go_on_through_updates_and_each_answer_is_of_the_version_it_names(
    engine: InferenceEngine, questions: Questions, trainer: Trainer
) -> None:
    """Each turn has all screenshots of those before; a cache that forgets only half of them crashed AReaL (1143)."""
    weights = {0: trainer.first_weights} | {version: trainer.changed(version) for version in (1, 2)}
    talks = [[questions.ask(n, images=images, seed=images, max_tokens=8) for images in range(1, 5)] for n in range(3)]

    async def talk(requests: list[GenerateRequest]) -> list[Response]:
        return [await engine.generate(request) for request in requests]

    async def updates() -> None:
        for version in (1, 2):
            await engine.update_weights(weights[version].items(), version)

    async def scene() -> list[list[Response]]:
        *answers, _ = await asyncio.gather(*map(talk, talks), updates())
        return answers

    asked = [request for requests in talks for request in requests]
    answers = [response for responses in run(scene()) for response in responses]
    assert len({response.policy_version for response in answers}) > 1
    for version, tensors in weights.items():
        trainer.load(tensors)
        of_it = [(q, r) for q, r in zip(asked, answers, strict=True) if r.policy_version == version]
        assert all(trainer.gap(request, response) < TOLERANCE for request, response in of_it)


@real_engines
def test_a_context_that_does_not_fit_is_an_error_of_that_request_alone(
    engine: InferenceEngine, questions: Questions
) -> None:
    good = questions.ask(5)
    too_long = GenerateRequest((good.prompt_ids[-1],) * MAX_MODEL_LEN, (), Sampling())

    async def scene() -> list[object]:
        return await asyncio.gather(engine.generate(too_long), engine.generate(good), return_exceptions=True)

    failed, response = run(scene())
    assert isinstance(failed, EngineError)
    assert f"a context of {MAX_MODEL_LEN} tokens" in str(failed)
    assert response.token_ids


@real_engines
def test_a_response_is_cut_where_the_context_is_full(engine: InferenceEngine, questions: Questions) -> None:
    request = questions.ask(5, temperature=0.0)
    word = request.prompt_ids[-1]
    asked = questions.chat.context_length(request.prompt_ids, [(140, 112)])
    filler = MAX_MODEL_LEN - asked - 4
    full = replace(request, prompt_ids=(word,) * filler + request.prompt_ids)
    (response,) = together(engine.generate(full))
    assert (len(response.token_ids), response.finish_reason) == (4, "length")


@real_engines
def test_placeholders_without_a_screenshot_are_refused(engine: InferenceEngine, questions: Questions) -> None:
    request = questions.ask(6, images=2)
    with pytest.raises(EngineError, match="2 image placeholders for 1 images"):
        run(engine.generate(replace(request, images=request.images[:1])))


@real_engines
def test_a_broken_screenshot_is_an_error_of_that_request_alone(engine: InferenceEngine, questions: Questions) -> None:
    request = questions.ask(6)
    for broken in (b"not a png", request.images[0][:200]):
        with pytest.raises(EngineError):
            run(engine.generate(replace(request, images=(broken,))))
    assert run(engine.generate(request)).token_ids


def odd_pictures(good: bytes) -> Iterator[bytes]:
    """Pictures of sizes that no model sees, and such as decoders read each in another way."""
    for size in ((600, 2), (2, 600), (100_000, 1)):
        yield screenshot_of(Image.new("RGB", size))
    yield good[:16] + 2 * (20_000).to_bytes(4) + good[24:]  # its header alone says so
    yield screenshot_of(Image.new("I;16", (140, 112)))
    yield screenshot_of(
        Image.new("RGB", (140, 112)), save_all=True, append_images=[Image.new("RGB", (140, 112), "red")]
    )
    yield good[:-16] + good[-12:]  # a chunk without its checksum
    yield good[:60] + bytes([good[60] ^ 1]) + good[61:]


def screenshot_of(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@real_engines
def test_a_picture_that_no_model_sees_is_refused_and_the_engine_lives(
    engine: InferenceEngine, questions: Questions
) -> None:
    request = questions.ask(6, images=2)
    good = request.images[0]
    for odd in odd_pictures(good):
        with pytest.raises(EngineError, match="the request is refused: a screenshot"):
            run(engine.generate(replace(request, images=(good, odd))))
    for none in (None, "text", bytearray(good)):
        with pytest.raises(EngineError, match="a screenshot must be the bytes of a PNG"):
            run(engine.generate(replace(request, images=(good, none))))
    assert run(engine.generate(request)).token_ids


def impossible(request: GenerateRequest, image: int) -> Iterator[GenerateRequest]:
    """Requests that no forward pass survives."""
    for word in (-1, 10**6, 2**70, None, "a", 1.5, math.nan):
        yield replace(request, prompt_ids=(*request.prompt_ids, word))
    yield replace(request, prompt_ids=(), images=())
    yield replace(request, images=())
    yield replace(request, prompt_ids=(*request.prompt_ids, image))
    yield replace(request, prompt_ids=(*request.prompt_ids, image, image), images=4 * request.images[:1])
    for temperature in (-1.0, math.nan, math.inf):
        yield replace(request, sampling=replace(request.sampling, temperature=temperature))
    for tokens in (0, -1, 1.5):
        yield replace(request, sampling=replace(request.sampling, max_tokens=tokens))
    for seed in (2**63, -(2**63) - 1, 2.5):
        yield replace(request, sampling=replace(request.sampling, seed=seed))


@real_engines
def test_a_request_that_no_model_takes_is_refused_and_the_engine_lives(
    engine: InferenceEngine, questions: Questions
) -> None:
    request = questions.ask(6, images=2)
    for wrong in impossible(request, questions.chat.image_token_id):
        with pytest.raises(
            EngineError, match=r"the prompt must be ids|image placeholders|temperature must be"
        ) as caught:
            run(engine.generate(wrong))
        assert not isinstance(caught.value, EngineGoneError)
    assert run(engine.generate(request)).token_ids


@real_engines
def test_a_temperature_that_scores_cannot_be_divided_by_is_greedy(
    engine: InferenceEngine, questions: Questions
) -> None:
    greedy, cold = (together(engine.generate(questions.ask(6, temperature=t)))[0] for t in (0.0, 1e-45))
    assert cold == greedy


@real_engines
@pytest.mark.parametrize("size", [(1, 1), (200, 1), (20, 4000), (3000, 16)])
def test_a_picture_of_a_size_that_models_see_is_answered(
    engine: InferenceEngine, questions: Questions, size: tuple[int, int]
) -> None:
    request = questions.ask(6, images=2)
    small = screenshot_of(Image.new("RGB", size, "blue"))
    for images in ((small, request.images[0]), request.images):
        assert run(engine.generate(replace(request, images=images))).token_ids


@every_engine
def test_a_request_whose_caller_has_gone_disturbs_nobody(engine: InferenceEngine, questions: Questions) -> None:
    request = questions.ask(7, max_tokens=64, seed=6)

    async def scene() -> object:
        gone = [asyncio.create_task(engine.generate(questions.ask(n, max_tokens=200, seed=n))) for n in range(4)]
        stays = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0.02)
        for task in gone:
            task.cancel()
        return await stays

    assert run(scene()).token_ids == run(engine.generate(request)).token_ids
