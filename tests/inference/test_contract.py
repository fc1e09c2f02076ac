"""What every engine promises: one suite, run on each of them."""

import asyncio
import io
import math
from dataclasses import replace
from functools import partial

import pytest
from PIL import Image

from arpo.errors import EngineError, RequestError
from arpo.inference.engine import GenerateRequest, Sampling
from arpo.inference.fleet import FleetEngine
from arpo.inference.hf import HfEngine
from arpo.inference.vllm import VllmEngine
from tests.inference.conftest import on_a_cpu_by_vllm
from tests.inference.loop import run, together
from tests.inference.scripted import ScriptedEngine

TOLERANCE = 1e-4
MAX = 512
FAKE = ["scripted", pytest.param("scripted fleet", marks=[pytest.mark.ray, pytest.mark.long])]
REAL = [
    "hf",
    pytest.param("vllm", marks=pytest.mark.engine),
    pytest.param("fleet", marks=[pytest.mark.ray, pytest.mark.long]),
]


def click_or_ramble(request):
    """A short response for even seeds and one that gets cut for odd ones."""
    return "Action: wait() " * (1 + 40 * (request.sampling.seed % 2)) + str(request.sampling.seed)


@pytest.fixture(scope="module")
def engine(request, tiny_model):
    fake, real = partial(ScriptedEngine, tiny_model, click_or_ramble), partial(HfEngine, tiny_model, max_model_len=MAX)
    match request.param:
        case "scripted":
            engine = fake()
        case "hf":
            engine = real()
        case "vllm":
            on_a_cpu_by_vllm(tiny_model)
            engine = VllmEngine(tiny_model, max_model_len=MAX, max_num_seqs=8, max_images=4, kv_cache_gb=0.125)
        case _:
            engine = FleetEngine(fake if request.param == "scripted fleet" else real, replicas=2)
    yield engine
    run(engine.close())
    run(engine.close())  # twice is once


@pytest.fixture
def update(engine, trainer):
    """Gives weights to the engine; the first ones come back after the test."""

    def send(weights, version):
        run(engine.update_weights(weights.items(), version))

    yield send
    send(trainer.first_weights, 0)


every_engine = pytest.mark.parametrize("engine", [*FAKE, *REAL], indirect=True)
real_engines = pytest.mark.parametrize("engine", REAL, indirect=True)


@every_engine
def test_a_response_ends_with_the_end_of_turn_or_is_as_long_as_allowed(engine, questions, chat):
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
def test_forbidden_ids_are_never_sampled_and_log_probabilities_are_not_positive(engine, questions, chat):
    requests = [questions.ask(seed, max_tokens=64, seed=seed, temperature=2.0) for seed in range(16)]
    responses = together(*(engine.generate(request) for request in requests))
    assert not {token for response in responses for token in response.token_ids} & set(chat.forbidden_ids)
    assert all(logprob <= 0 for response in responses for logprob in response.logprobs)


@real_engines
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probabilities_are_the_trainers(engine, questions, trainer, temperature):
    requests = [questions.ask(n, images=1 + n % 4, temperature=temperature, seed=n) for n in range(8)]
    responses = together(*(engine.generate(request) for request in requests))
    gaps = [trainer.gap(request, response) for request, response in zip(requests, responses, strict=True)]
    assert max(gaps) < TOLERANCE


@real_engines
def test_temperature_zero_takes_the_likeliest_word(engine, questions, trainer):
    request = questions.ask(1, images=2, temperature=0.0)
    (response,) = together(engine.generate(request))
    assert tuple(trainer.distributions(request, response).argmax(-1).tolist()) == response.token_ids


@every_engine
def test_the_seed_decides_the_response(engine, questions):
    first, second, other = (together(engine.generate(questions.ask(2, images=2, seed=seed)))[0] for seed in (6, 6, 7))
    assert first.token_ids == second.token_ids
    assert first.token_ids != other.token_ids


@every_engine
def test_what_else_is_in_flight_does_not_change_a_response(engine, questions):
    requests = [questions.ask(n, images=1 + n % 4, seed=n, max_tokens=8 + n) for n in range(12)]
    at_once = together(*(engine.generate(request) for request in requests))
    one_by_one = [together(engine.generate(request))[0] for request in reversed(requests)]
    assert [r.token_ids for r in at_once] == [r.token_ids for r in reversed(one_by_one)]


@every_engine
def test_the_screenshot_matters(engine, questions):
    request = questions.ask(3, images=2, temperature=0.0)
    swapped = replace(request, images=request.images[::-1])
    one, other = together(engine.generate(request), engine.generate(swapped))
    assert one.logprobs != other.logprobs


@every_engine
def test_an_update_changes_log_probabilities_and_stamps_the_version(engine, questions, trainer, update):
    request = questions.ask(4, images=3, seed=4)
    (before,) = together(engine.generate(request))
    update(trainer.changed(1), 7)
    (after,) = together(engine.generate(request))
    assert (before.policy_version, after.policy_version, engine.oldest_version) == (0, 7, 7)
    assert before.logprobs != after.logprobs


@real_engines
def test_after_every_update_the_same_question_gets_the_new_weights_answer(engine, questions, trainer, update):
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
@pytest.mark.usefixtures("update")
async def test_an_update_waits_for_requests_in_flight_and_later_requests_wait_for_it(engine, questions, trainer):
    weights = trainer.changed(5)
    early = [questions.ask(n, images=2, seed=n, max_tokens=96) for n in range(4)]
    late = [questions.ask(n, images=2, seed=n) for n in range(4)]
    first = [asyncio.create_task(engine.generate(request)) for request in early]
    await asyncio.sleep(0.05)
    change = asyncio.create_task(engine.update_weights(weights.items(), 9))
    await asyncio.sleep(0)
    second = [asyncio.create_task(engine.generate(request)) for request in late]
    await change
    before, after = await asyncio.gather(*first), await asyncio.gather(*second)
    assert [response.policy_version for response in before] == [0] * 4
    assert max(trainer.gap(q, r) for q, r in zip(early, before, strict=True)) < TOLERANCE
    trainer.load(weights)
    assert [response.policy_version for response in after] == [9] * 4
    assert max(trainer.gap(q, r) for q, r in zip(late, after, strict=True)) < TOLERANCE


@real_engines
@pytest.mark.usefixtures("update")
async def test_conversations_go_on_through_updates_and_each_answer_is_of_the_version_it_names(
    engine, questions, trainer
):
    """Each turn has all screenshots of those before; a cache that forgets only half of them crashed AReaL (1143)."""
    weights = {0: trainer.first_weights} | {version: trainer.changed(version) for version in (1, 2)}
    talks = [[questions.ask(n, images=images, seed=images, max_tokens=8) for images in range(1, 5)] for n in range(3)]

    async def talk(requests):
        return [await engine.generate(request) for request in requests]

    async def updates():
        for version in (1, 2):
            await engine.update_weights(weights[version].items(), version)

    *talked, _ = await asyncio.gather(*map(talk, talks), updates())
    asked = [request for requests in talks for request in requests]
    answers = [response for responses in talked for response in responses]
    assert len({response.policy_version for response in answers}) > 1
    for version, tensors in weights.items():
        trainer.load(tensors)
        of_it = [(q, r) for q, r in zip(asked, answers, strict=True) if r.policy_version == version]
        assert all(trainer.gap(request, response) < TOLERANCE for request, response in of_it)


@real_engines
async def test_a_context_that_does_not_fit_is_an_error_of_that_request_alone(engine, questions):
    good = questions.ask(5)
    too_long = GenerateRequest((good.prompt_ids[-1],) * MAX, (), Sampling())
    failed, response = await asyncio.gather(engine.generate(too_long), engine.generate(good), return_exceptions=True)
    assert isinstance(failed, EngineError)
    assert f"a context of {MAX} tokens" in str(failed)
    assert response.token_ids


@real_engines
def test_a_response_is_cut_where_the_context_is_full(engine, questions):
    request = questions.ask(5, temperature=0.0)
    word = request.prompt_ids[-1]
    asked = questions.chat.context_length(request.prompt_ids, [(140, 112)])
    filler = MAX - asked - 4
    full = replace(request, prompt_ids=(word,) * filler + request.prompt_ids)
    (response,) = together(engine.generate(full))
    assert (len(response.token_ids), response.finish_reason) == (4, "length")


def odd_pictures(good):
    """What is no picture, pictures of sizes that no model sees, and such as decoders read each in another way."""
    yield from (b"not a png", good[:200])
    for size in ((600, 2), (2, 600), (100_000, 1)):
        yield screenshot_of(Image.new("RGB", size))
    yield good[:16] + 2 * (20_000).to_bytes(4) + good[24:]  # its header alone says so
    yield screenshot_of(Image.new("I;16", (140, 112)))
    two = [Image.new("RGB", (140, 112), color) for color in ("black", "red")]
    yield screenshot_of(two[0], save_all=True, append_images=two[1:])
    yield good[:-16] + good[-12:]  # a chunk without its checksum
    yield good[:60] + bytes([good[60] ^ 1]) + good[61:]


def screenshot_of(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@real_engines
def test_a_picture_that_no_model_sees_is_refused_and_the_engine_lives(engine, questions):
    request = questions.ask(6, images=2)
    good = request.images[0]
    for odd in odd_pictures(good):
        with pytest.raises(RequestError, match="the request is refused: a screenshot"):
            run(engine.generate(replace(request, images=(good, odd))))
    for none in (None, "text", bytearray(good)):
        with pytest.raises(RequestError, match="a screenshot must be the bytes of a PNG"):
            run(engine.generate(replace(request, images=(good, none))))
    assert run(engine.generate(request)).token_ids


def impossible(request, image):
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
def test_a_request_that_no_model_takes_is_refused_and_the_engine_lives(engine, questions):
    request = questions.ask(6, images=2)
    refusal = r"the prompt must be ids|image placeholders|temperature must be"
    for wrong in impossible(request, questions.chat.image_token_id):
        with pytest.raises(RequestError, match=refusal):
            run(engine.generate(wrong))
    assert run(engine.generate(request)).token_ids


@real_engines
def test_a_temperature_that_scores_cannot_be_divided_by_is_greedy(engine, questions):
    greedy, cold = (together(engine.generate(questions.ask(6, temperature=t)))[0] for t in (0.0, 1e-45))
    assert cold == greedy


@real_engines
@pytest.mark.parametrize("size", [(1, 1), (200, 1), (20, 4000), (3000, 16)])
def test_a_picture_of_a_size_that_models_see_is_answered(engine, questions, size):
    request = questions.ask(6, images=2)
    small = screenshot_of(Image.new("RGB", size, "blue"))
    for images in ((small, request.images[0]), request.images):
        assert run(engine.generate(replace(request, images=images))).token_ids


@every_engine
async def test_a_request_whose_caller_has_gone_disturbs_nobody(engine, questions):
    request = questions.ask(7, max_tokens=64, seed=6)
    gone = [asyncio.create_task(engine.generate(questions.ask(n, max_tokens=200, seed=n))) for n in range(4)]
    stays = asyncio.create_task(engine.generate(request))
    await asyncio.sleep(0.02)
    for task in gone:
        task.cancel()
    assert (await stays).token_ids == (await engine.generate(request)).token_ids
