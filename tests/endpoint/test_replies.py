"""Replies and streams, read by the clients that harnesses use."""

import json
from importlib import import_module

import httpx
import httpx2
import pytest

from arpo.endpoint.conversation import Answer, Stamp
from arpo.endpoint.wire import chat, common, messages, responses
from arpo.endpoint.wire.common import KINDS, status_of
from arpo.errors import RefusedError
from tests.endpoint.samples import ANSWERS, CALLS, DIALECTS, STAMP, asking

each_answer = pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
LIBRARIES = ("openai", "anthropic")
STREAM = Stamp("e7", 1_700_000_000, "policy", stream_usage=True)


def client(library, content, status=200, headers=None, max_retries=0):
    """A client of the library whose server says the same to everything."""
    kind = "text/event-stream" if isinstance(content, list) else "application/json"
    body = b"".join(content) if isinstance(content, list) else content
    said = {"content-type": kind, **(headers or {})}
    web = httpx2 if library == "anthropic" else httpx
    made = web.Client(transport=web.MockTransport(lambda _: web.Response(status, content=body, headers=said)))
    # Not at the top of the file, which every process of pytest collects: that takes five seconds.
    loaded, options = import_module(library), {"api_key": "k", "http_client": made, "max_retries": max_retries}
    if library == "openai":
        return loaded.OpenAI(base_url="http://loop/v1", **options)
    return loaded.Anthropic(base_url="http://loop", **options)


def arguments(calls):
    return [json.loads(call.arguments) for call in calls]


@each_answer
@pytest.mark.parametrize("streamed", [False, True])
def test_openais_client_reads_a_chat_completion_as_it_was_answered(answer, streamed):
    ask = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
    if streamed:
        with client("openai", [*chat.events([answer], STREAM)]).chat.completions.stream(
            **ask, stream_options={"include_usage": True}
        ) as stream:
            for _ in stream:
                pass
            found = stream.get_final_completion() if answer.finish != "length" else stream.current_completion_snapshot
    else:
        found = client("openai", chat.reply([answer], STAMP)).chat.completions.create(**ask)
        import_module("openai.types.chat").ChatCompletion.model_validate(found.model_dump(), strict=True)
    (choice,) = found.choices
    assert (choice.message.content or "") == answer.text
    assert [(call.id, call.function.name) for call in choice.message.tool_calls or ()] == [
        (call.id, call.name) for call in answer.tool_calls
    ]
    assert [call.function.arguments for call in choice.message.tool_calls or ()] == [
        call.arguments for call in answer.tool_calls
    ]
    assert (choice.message.model_extra or {}).get("reasoning_content", "") == answer.thought
    assert choice.finish_reason == answer.finish
    assert (found.id, found.model, found.created) == ("chatcmpl-e7", "policy", 1_700_000_000)
    assert found.usage.prompt_tokens == 9
    assert found.usage.total_tokens == 9 + answer.completion_tokens


def test_several_answers_are_choices_with_their_log_probabilities_also_in_a_stream():
    both = [
        Answer(text="A", logprobs=(("A", -0.5), ("<|im_end|>", -1.0)), prompt_tokens=3, completion_tokens=2),
        Answer(text="B", prompt_tokens=3, completion_tokens=1),
    ]
    found = client("openai", chat.reply(both, STAMP)).chat.completions.create(model="m", messages=[], n=2)
    assert [choice.message.content for choice in found.choices] == ["A", "B"]
    assert [(each.token, each.logprob) for each in found.choices[0].logprobs.content] == [
        ("A", -0.5),
        ("<|im_end|>", -1),
    ]
    assert found.choices[0].logprobs.content[0].bytes == [65]
    assert found.usage.completion_tokens == 3
    chunks = [
        *client("openai", [*chat.events(both, STAMP)]).chat.completions.create(model="m", messages=[], stream=True)
    ]
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)  # usage only where it is asked for
    texts = ["".join(c.delta.content or "" for k in chunks for c in k.choices if c.index == index) for index in (0, 1)]
    assert texts == ["A", "B"]
    logged = [c.logprobs for k in chunks for c in k.choices if c.logprobs]
    assert [each.token for each in logged[0].content] == ["A", "<|im_end|>"]


@each_answer
@pytest.mark.parametrize("streamed", [False, True])
def test_openais_client_reads_a_response_as_it_was_answered(answer, streamed):
    if streamed:
        kinds = []
        with client("openai", [*responses.events([answer], STAMP)]).responses.stream(
            model="policy", input="Hi"
        ) as stream:
            for each in stream:
                kinds.append(each.type)
                last = each
            found = last.response
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == ("response.incomplete" if answer.finish == "length" else "response.completed")
    else:
        found = client("openai", responses.reply([answer], STAMP)).responses.create(model="policy", input="Hi")
        import_module("openai.types.responses").Response.model_validate(json.loads(responses.reply([answer], STAMP)))
    assert found.output_text == answer.text
    calls = [item for item in found.output if item.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        (call.id, call.name, call.arguments) for call in answer.tool_calls
    ]
    thoughts = [part.text for item in found.output if item.type == "reasoning" for part in item.content]
    assert "".join(thoughts) == answer.thought
    assert found.status == ("incomplete" if answer.finish == "length" else "completed")
    assert found.usage.total_tokens == 9 + answer.completion_tokens
    assert len({item.id for item in found.output}) == len(found.output)


def test_every_event_of_a_response_has_the_next_number_and_all_fields_of_its_type():
    from openai._models import construct_type
    from openai.types.responses import ResponseStreamEvent

    for number, piece in enumerate(b"".join(responses.events([ANSWERS["all"]], STAMP)).strip().split(b"\n\n")):
        content = json.loads(piece.partition(b"data: ")[2])
        assert piece.startswith(f"event: {content['type']}\n".encode())
        assert content["sequence_number"] == number
        made = construct_type(type_=ResponseStreamEvent, value=content)
        type(made).model_validate(content)  # strict about what is missing, where the client is not


@each_answer
@pytest.mark.parametrize("streamed", [False, True])
def test_anthropics_client_reads_a_message_as_it_was_answered(answer, streamed):
    ask = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    if streamed:
        with client("anthropic", [*messages.events([answer], STAMP)]).messages.stream(**ask) as stream:
            found = stream.get_final_message()
    else:
        found = client("anthropic", messages.reply([answer], STAMP)).messages.create(**ask)
        import_module("anthropic").types.Message.model_validate(json.loads(messages.reply([answer], STAMP)))
    said = {
        kind: [block for block in found.content if block.type == kind] for kind in ("text", "thinking", "tool_use")
    }
    assert "".join(block.text for block in said["text"]) == answer.text
    assert "".join(block.thinking for block in said["thinking"]) == answer.thought
    calls = [(block.id, block.name, block.input) for block in said["tool_use"]]
    names = [(call.id, call.name) for call in answer.tool_calls]
    assert calls == [(*name, given) for name, given in zip(names, arguments(answer.tool_calls), strict=True)]
    assert found.stop_reason == {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[answer.finish]
    assert (found.usage.input_tokens, found.usage.output_tokens) == (9, answer.completion_tokens)
    assert found.content  # never empty: a client that sends it back would be refused elsewhere


def test_a_text_that_the_agent_ends_answers_with_is_named_where_the_dialect_has_a_field_for_it():
    answer = Answer(text="A", stopped_by="Obs:", prompt_tokens=1, completion_tokens=1)
    found = client("anthropic", messages.reply([answer], STAMP)).messages.create(model="m", max_tokens=1, messages=[])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "Obs:")


ENDS = {"chat": b'finish_reason":"', "responses": b"response.completed", "messages": b"message_stop"}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ["text", "all"])
def test_only_the_last_piece_of_a_stream_says_that_the_answer_is_whole(dialect, name):
    *before, last = DIALECTS[dialect].events([ANSWERS[name]], STAMP)
    assert ENDS[dialect] in last
    assert not any(ENDS[dialect] in piece for piece in before)
    assert all(piece.endswith(b"\n\n") for piece in (*before, last, DIALECTS[dialect].keepalive))


REFUSALS = {
    "invalid": ("BadRequestError", "BadRequestError"),
    "context_length_exceeded": ("BadRequestError", "BadRequestError"),
    "invalid_api_key": ("AuthenticationError", "AuthenticationError"),
    "not_found": ("NotFoundError", "NotFoundError"),
    "closed": ("ConflictError", "ConflictError"),
    "too_large": ("APIStatusError", "APIStatusError"),
    "rate_limit_exceeded": ("RateLimitError", "RateLimitError"),
    "failed": ("InternalServerError", "InternalServerError"),
    "unavailable": ("InternalServerError", "APIStatusError"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_the_clients_own_error(kind):
    refusal = RefusedError(kind, "no\x1b more", retry_after_s=2.4 if kind == "rate_limit_exceeded" else None)
    status, headers = status_of(refusal)
    # Both clients would ask twice more after a conflict and a server's error, which the end of an episode is not.
    lasting = {"x-should-retry": "false"} if kind in ("closed", "unavailable") else {}
    assert headers == ({"Retry-After": "2"} if kind == "rate_limit_exceeded" else lasting)
    ours, theirs = (getattr(import_module(each), name) for each, name in zip(LIBRARIES, REFUSALS[kind], strict=True))
    with pytest.raises(ours, match=r"no\\x1b more") as caught:
        client("openai", DIALECTS["chat"].error(refusal), status, headers).responses.create(model="m", input="Hi")
    assert caught.value.code == kind
    with pytest.raises(theirs, match=r"no\\\\x1b more") as raised:
        client("anthropic", messages.error(refusal), status).messages.create(model="m", max_tokens=1, messages=[])
    assert raised.value.body["type"] == "error"
    assert raised.value.body["error"]["type"] == KINDS[kind][2]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_does_not_ask_again_once_the_episode_has_ended(library):
    status, headers = status_of(RefusedError("closed", "stop"))
    made = client(library, messages.error(RefusedError("closed", "stop")), status, headers, max_retries=2)
    asked = []
    made._client.event_hooks["request"] = [asked.append]
    with pytest.raises(import_module(library).ConflictError):
        made.get("/models", cast_to=object)
    assert len(asked) == 1


def test_a_context_that_is_too_long_is_refused_in_the_words_that_agents_look_for():
    refusal = common.context_too_long(5000, 4096)
    assert "maximum context length is 4096 tokens" in str(refusal)
    assert str(refusal).startswith("prompt is too long: 5000 tokens > 4096 maximum")
    assert json.loads(DIALECTS["chat"].error(refusal))["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_that_fails_raises_in_the_client(dialect):
    begun = next(iter(DIALECTS[dialect].events([ANSWERS["text"]], STAMP)))
    pieces = [begun, DIALECTS[dialect].keepalive, DIALECTS[dialect].failure(RefusedError("failed", "the engine died"))]
    if dialect == "messages":
        said = client("anthropic", pieces).messages
        ask = asking(dialect, max_tokens=9)
    else:
        said = client("openai", pieces).chat.completions if dialect == "chat" else client("openai", pieces).responses
        ask = asking(dialect)
    seen = []
    try:
        seen += [each.type for each in said.create(**ask, stream=True) if dialect == "responses"]
    except tuple(import_module(each).APIError for each in LIBRARIES) as error:
        assert "the engine died" in str(error)  # noqa: PT017 - a response's own event may end it, too
    else:
        assert seen[-1] == "error"


def test_both_clients_read_the_list_of_models_and_anthropics_the_number_of_tokens():
    listed = common.models(["policy", "helper"], 7)
    assert [each.id for each in client("openai", listed).models.list()] == ["policy", "helper"]
    assert [each.id for each in client("anthropic", listed).models.list()] == ["policy", "helper"]
    counted = client("anthropic", messages.token_count(41)).messages.count_tokens(model="m", messages=[])
    assert counted.input_tokens == 41


def test_an_answers_calls_have_names_that_both_dialects_allow():
    assert all(call.id.replace("_", "").isalnum() for call in CALLS)
