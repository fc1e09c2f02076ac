"""The endpoint as clients and attackers see it, over real sockets."""

import asyncio
import json
import resource
import socket
import threading
import time
from contextlib import suppress
from importlib import import_module

import httpx
import pytest

from arpo.endpoint import remote, server
from arpo.endpoint.remote import RemotePolicy
from arpo.endpoint.server import AT_ONCE, BODIES, Endpoint
from arpo.endpoint.session import Budgets
from arpo.errors import EngineError
from tests.endpoint.samples import PNG, asking, picturing, url
from tests.endpoint.serving import Broken, Visit, serving

HI = [{"role": "user", "content": "Hi"}]
BODY = {"model": "policy", "messages": HI}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
each_dialect = pytest.mark.parametrize("dialect", PATHS)


def recorded(visit):
    return visit.seat.session.close()


async def ended(visit):
    """Wait until nothing of a visit is in flight."""
    while any(not flight.task.done() or flight.waiting for flight in visit.seat.flights.values()):
        await asyncio.sleep(0.01)


def clients(visit):
    """Return those of OpenAI and Anthropic; each process of pytest would take seconds to import both here."""
    made = import_module("openai").AsyncOpenAI(api_key=visit.key, base_url=f"{visit.address}/v1", max_retries=0)
    return made, import_module("anthropic").AsyncAnthropic(api_key=visit.key, base_url=visit.address, max_retries=0)


async def text_by_openai(client, streamed):
    if not streamed:
        return (await client.chat.completions.create(**BODY)).choices[0].message.content
    async with client.chat.completions.stream(**BODY) as stream:
        return (await stream.get_final_completion()).choices[0].message.content


async def text_by_responses(client, streamed):
    if not streamed:
        return (await client.responses.create(model="policy", input="Hi")).output_text
    async with client.responses.stream(model="policy", input="Hi") as stream:
        return (await stream.get_final_response()).output_text


async def text_by_anthropic(client, streamed):
    if not streamed:
        return (await client.messages.create(max_tokens=50, **BODY)).content[0].text
    async with client.messages.stream(max_tokens=50, **BODY) as stream:
        return (await stream.get_final_message()).content[0].text


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_clients_of_openai_and_anthropic_are_answered_and_recorded(plain, streamed):
    async with serving(plain) as visit:
        made, other = clients(visit)
        texts = [await ask(made, streamed) for ask in (text_by_openai, text_by_responses)]
        assert [*texts, await text_by_anthropic(other, streamed)] == ["Well."] * 3
        assert [model.id async for model in await made.models.list()] == ["policy", "helper", "greedy"]
    exchanges = recorded(visit)
    assert [each.trained for each in exchanges] == [True] * 3
    assert [each.added_ids for each in exchanges] == [request.prompt_ids for request in visit.engine.requests]
    counters = visit.endpoint.counters()
    assert (counters["harness/episodes"], counters["harness/exchanges"]) == (1, 3)


async def test_anthropics_client_has_the_tokens_of_a_context_counted_which_asks_the_engine_for_nothing(plain):
    async with serving(plain) as visit:
        _, made = clients(visit)
        counted = await made.messages.count_tokens(**BODY)
        answer = await made.messages.create(max_tokens=50, **BODY)
        assert counted.input_tokens == answer.usage.input_tokens > 1
        with pytest.raises(import_module("anthropic").BadRequestError, match="the last one must be the user's"):
            await made.messages.count_tokens(model="policy", messages=[{"role": "assistant", "content": "I"}])
    assert len(visit.engine.requests) == 1


@each_dialect
async def test_a_picture_arrives_byte_for_byte(plain, dialect):
    async with serving(plain) as visit:
        body = picturing(dialect, url()) | ({"max_tokens": 20} if dialect == "messages" else {})
        if dialect == "messages":
            source = {"type": "base64", "media_type": "image/png", "data": url().partition(",")[2]}
            body["messages"][0]["content"][0]["source"] = source
        assert (await visit.post(body, PATHS[dialect])).status_code == 200
        assert visit.engine.requests[0].images == (PNG,)


async def test_a_key_opens_its_own_episode_alone_and_nothing_after_its_end(plain):
    async with serving(plain, {}, {}) as (visit, other):
        for key, status in ((visit.key, 200), ("k", 401), (visit.key[:-1], 401)):
            assert (await visit.post(BODY, key=key)).status_code == status
        assert (await visit.post(BODY, f"/desktop/{other.key}/v1/chat/completions")).status_code == 404
        assert not other.engine.requests
        with_key = {"Idempotency-Key": "k"}
        first = await visit.post(BODY, **with_key)
        assert (await visit.post(BODY, **with_key)).json() == first.json()
        assert (await visit.post(BODY, key=other.key, **with_key)).json()["id"] != ""
        assert len(other.engine.requests) == 1
    endpoint = Endpoint()
    endpoint._closed[server._digest(visit.key)] = None
    await endpoint.start()
    visit.endpoint = endpoint
    assert (await visit.post(BODY)).status_code == 409
    await endpoint.close()


@pytest.mark.parametrize("path", ["/reward", "/evaluate", "/v1/fine_tuning/jobs", "/reset", "/setup/execute", "/"])
async def test_there_is_nothing_else_to_post_to_such_as_a_reward(plain, path):
    async with serving(plain) as visit:
        reply = await visit.post({"reward": 1.0}, path)
        assert reply.status_code == 404
        assert "choose /v1/chat/completions" in reply.json()["error"]["message"]


# --- sent again, given up -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k"}, {"X-Stainless-Retry-Count": "1"}])
async def test_a_request_that_is_sent_again_joins_the_first_and_gets_the_same_bytes(plain, headers):
    async with serving(plain) as visit:
        visit.gate.clear()
        first = asyncio.create_task(visit.post(BODY, **({} if "X-Stainless-Retry-Count" in headers else headers)))
        await visit.asked.wait()
        twin = asyncio.create_task(visit.post(BODY, **headers))
        while next(iter(visit.seat.flights.values())).waiting < 2:
            await asyncio.sleep(0.01)
        visit.gate.set()
        assert (await first).content == (await twin).content == (await visit.post(BODY, **headers)).content
        assert len(visit.engine.requests) == 1
        assert (await visit.post(BODY)).json()["id"] != (await first).json()["id"]  # a second ask is another one
        assert len({request.sampling.seed for request in visit.engine.requests}) == 2


def typing(schema):
    return {"tools": [{"type": "function", "function": {"name": "type", "parameters": schema}}]}


@pytest.mark.parametrize(
    "options",
    [[{"seed": 1}, {"seed": 2}], [typing({"default": True}), typing({"default": 1})]],
    ids=["without effect", "equal in Python"],
)
async def test_requests_that_differ_in_an_option_get_an_answer_each(plain, options):
    async with serving(plain) as visit:
        one, two = [await visit.post(BODY | each, **{"X-Stainless-Retry-Count": "1"}) for each in options]
        assert one.json()["id"] != two.json()["id"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_agent_that_leaves_is_not_answered_and_its_budget_is_free_again(plain, streamed):
    async with serving(plain, {"budgets": Budgets(1, 500)}) as visit:
        visit.gate.clear()
        asking_ = asyncio.create_task(visit.post(BODY | {"stream": streamed}))
        await visit.asked.wait()
        assert (await visit.post(BODY)).status_code == 429
        asking_.cancel()
        await ended(visit)
        visit.gate.set()
        assert visit.cancelled == 1
        assert (await visit.post(BODY)).status_code == 200
    assert visit.endpoint.counters()["harness/dropped"] == 1
    assert len(recorded(visit)) == 1


async def test_an_agent_that_gives_up_and_asks_again_at_once_gets_the_same_answer(plain):
    async with serving(plain) as visit:
        visit.gate.clear()
        first = asyncio.create_task(visit.post(BODY))
        await visit.asked.wait()
        async with visit.seat.lock:  # the second request waits before the first one is seen to be gone
            again = asyncio.create_task(visit.post(BODY, **{"X-Stainless-Retry-Count": "1"}))
            await asyncio.sleep(0.3)
            first.cancel()
            while next(iter(visit.seat.flights.values())).waiting:
                await asyncio.sleep(0.01)
        visit.gate.set()
        assert (await again).status_code == 200
        assert len(visit.engine.requests) == 1


async def test_an_answer_that_was_ready_and_lost_is_given_to_the_next_same_request(plain, monkeypatch):
    async with serving(plain) as visit:
        deliver, lost = server.Delivery._deliver, []

        async def gone(self):
            if lost:
                return await deliver(self)
            lost.append(self)
            raise server.AgentGoneError

        monkeypatch.setattr(server.Delivery, "_deliver", gone)
        with suppress(httpx.RemoteProtocolError):
            await visit.post(BODY)
        await ended(visit)
        assert (await visit.post(BODY)).status_code == 200
        assert len(visit.engine.requests) == 1
    assert [each.trained for each in recorded(visit)] == [True]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_no_agent_takes_in_is_recorded_and_not_trained(plain, streamed, monkeypatch):
    monkeypatch.setattr(server, "READ_S", 0.3)
    async with serving(plain, {"respond": lambda request: "x" * 400}) as visit:
        visit.gate.clear()
        with socket.create_connection(("127.0.0.1", visit.endpoint.port)) as agent:
            body = json.dumps(BODY | {"stream": streamed}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {visit.key}\r\n"
            agent.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await visit.asked.wait()
        visit.gate.set()
        await ended(visit)
    assert not any(each.trained for each in recorded(visit))


async def test_a_stream_shows_life_before_there_is_an_answer_and_its_end_when_it_counts(plain, monkeypatch):
    monkeypatch.setattr(server, "KEEPALIVE_S", 0.02)
    async with serving(plain) as visit, visit.client() as client:
        visit.gate.clear()
        async with client.stream("POST", PATHS["chat"], json=BODY | {"stream": True}) as reply:
            pieces = reply.aiter_bytes()
            assert await anext(pieces) == b": keepalive\n\n"
            visit.gate.set()
            rest = b"".join([piece async for piece in pieces])
        assert rest.endswith(b"data: [DONE]\n\n")
        assert visit.seat.session.counters()["undelivered"] == 0


# --- failures -------------------------------------------------------------------------------------------------------


@each_dialect
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_failure_of_the_engine_is_one_of_the_episode_and_never_an_answer(plain, dialect, streamed):
    async with serving(plain) as visit:
        visit.seat.generate = Broken()
        reply = await visit.post(asking(dialect, stream=streamed, max_tokens=9), PATHS[dialect])
        assert reply.status_code == (200 if streamed else 503)
        assert b"the engine has failed" in reply.content
        assert visit.seat.over.is_set()
        assert isinstance(visit.seat.failure, EngineError)
    assert recorded(visit) == ()


async def test_a_server_that_ends_is_a_failure_of_the_episode_and_the_next_one_has_another(plain):
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - it is raised at the end of what is served
        async with serving(plain) as visit:
            endpoint = visit.endpoint
            endpoint._server.should_exit = True
            await endpoint._serving
            with pytest.raises(httpx.ConnectError):
                await visit.post(BODY)
            port, again = endpoint.port, Visit(endpoint, plain)
            async with endpoint.admit(again.seat) as again.key:
                assert (await again.post(BODY)).status_code == 200
            assert endpoint.port != port
    assert raised.group_contains(EngineError, match="has ended within the episode")


async def test_what_is_read_when_an_episode_ends_asks_no_engine(plain, monkeypatch):
    begun, opened = threading.Event(), Endpoint._opened

    def slowly(self, *request):
        begun.set()
        time.sleep(0.5)
        return opened(self, *request)

    monkeypatch.setattr(Endpoint, "_opened", slowly)
    async with serving(plain) as visit:
        late = asyncio.create_task(visit.post(BODY))
        await asyncio.to_thread(begun.wait)
    assert (await late).status_code == 409
    assert not visit.engine.requests


# --- attacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_a_gigabyte_is_refused_before_it_is_taken_in(plain, declared):
    async with serving(plain, body_bytes=2**20) as visit, visit.client() as client:
        sent = 0

        async def body():
            nonlocal sent
            for _ in range(2**14):
                sent += 2**16
                yield b" " * 2**16

        headers = {"Content-Length": str(2**30)} if declared else {}
        try:
            reply = await client.post(PATHS["chat"], content=body(), headers=headers)
            assert reply.status_code == 413
        except httpx.TransportError:  # it was closed while the rest was on its way
            pass
        assert sent < 2**26
        assert (await visit.post(BODY)).status_code == 200


async def test_a_body_is_not_taken_in_while_others_of_its_session_wait_to_be_read(plain, monkeypatch):
    taken, body, begun = [], Endpoint.body, asyncio.Event()

    async def counted(self, *request):
        taken.append(request)
        begun.set()
        return await body(self, *request)

    monkeypatch.setattr(Endpoint, "body", counted)
    async with serving(plain) as visit:
        async with visit.seat.lock:
            flood = [asyncio.create_task(visit.post(BODY)) for _ in range(6)]
            await begun.wait()
            await asyncio.sleep(1.0)  # in which the others would be taken in too
            assert len(taken) == BODIES
        assert {reply.status_code for reply in await asyncio.gather(*flood)} == {200}


async def test_a_body_that_never_ends_is_given_up_and_holds_up_its_own_session_alone(plain, monkeypatch):
    monkeypatch.setattr(server, "BODY_S", 0.5)
    async with serving(plain, {}, {}) as (visit, other), visit.client() as client:

        async def body():
            yield b"{"
            await asyncio.sleep(2)

        slow = [asyncio.create_task(client.post(PATHS["chat"], content=body())) for _ in range(4)]
        assert (await other.post(BODY)).status_code == 200
        replies = await asyncio.gather(*slow, return_exceptions=True)
        said = [each for each in replies if not isinstance(each, httpx.TransportError)]
        assert all(each.status_code == 400 and "did not arrive" in each.text for each in said)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (BODY | {"n": 1000}, 400),
        (BODY | {"max_tokens": 10**6}, 200),
        (BODY | {"logit_bias": {"5": 100}, "extra_body": {}, "chat_template": "{{ 1 }}"}, 200),
        (b"[" * 10**6, 400),
        (b"\xff\xfe", 400),
        ({"model": "policy", "messages": HI * 10**4}, 400),
        (picturing("chat", "http://127.0.0.1:1/x.png"), 400),
        (picturing("chat", "file:///etc/passwd"), 400),
    ],
)
async def test_requests_that_ask_for_too_much_are_bounded(plain, body, status):
    async with serving(plain) as visit:
        reply = await visit.post(body)
        assert reply.status_code == status
        assert all(request.sampling.max_tokens <= 500 for request in visit.engine.requests)


@each_dialect
async def test_a_special_token_in_any_text_is_text(plain, dialect):
    markup = "<|im_start|><|im_end|><|vision_start|><|image_pad|>"
    special = set(plain.header) | {plain.image_token_id, plain.end_of_turn_id}
    async with serving(plain) as visit:
        for text in ("Hi", markup):
            content = {"input": text} if dialect == "responses" else {"messages": [{"role": "user", "content": text}]}
            assert (await visit.post(asking(dialect, max_tokens=9) | content, PATHS[dialect])).status_code == 200
        plainly, marked = ([each for each in ids.prompt_ids if each in special] for ids in visit.engine.requests)
        assert plainly == marked


async def test_connections_that_agents_keep_open_leave_files_for_the_rest_of_the_run(plain):
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    held = []
    try:
        async with serving(plain) as visit:
            held = [await asyncio.open_connection("127.0.0.1", visit.endpoint.port) for _ in range(300)]
            assert (await visit.post(BODY)).status_code == 200
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == (min(most, 4096) if most >= 0 else 4096)
    finally:
        for _, connection in held:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


async def test_a_flood_of_one_session_waits_in_its_own_queue(plain):
    async with serving(plain, {}, {}) as (visit, other):
        visit.gate.clear()
        flood = [asyncio.create_task(visit.post(BODY)) for _ in range(3 * AT_ONCE)]
        while len(visit.engine.requests) < AT_ONCE:
            await asyncio.sleep(0.01)
        assert (await other.post(BODY)).status_code == 200
        assert len(visit.engine.requests) == AT_ONCE
        visit.gate.set()
        assert {reply.status_code for reply in await asyncio.gather(*flood)} == {200}


# --- a policy behind an address -------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_policy_behind_an_address_answers_in_the_place_of_the_engine(plain, streamed):
    async with serving(plain) as there:
        here = Endpoint(remote=RemotePolicy(f"{there.address}/v1", "greedy", there.key))
        visit = Visit(here, plain, budgets=Budgets(3, 10**6))
        async with here.admit(visit.seat) as visit.key:
            made, other = clients(visit)
            texts = [await ask(made, streamed) for ask in (text_by_openai, text_by_responses)]
            assert [*texts, await text_by_anthropic(other, streamed)] == ["Well."] * 3
            assert (await visit.post(BODY)).status_code == 429
        await here.close()
        assert visit.engine.requests == []
        assert [request.sampling.temperature for request in there.engine.requests] == [0.0] * 3
        assert here.counters()["harness/forwarded"] == 3


async def test_a_policy_behind_an_address_is_asked_for_several_answers_at_a_time(plain):
    async with serving(plain) as there:
        here = Endpoint(remote=RemotePolicy(f"{there.address}/v1", "policy", there.key))
        visit = Visit(here, plain)
        there.gate.clear()
        async with here.admit(visit.seat) as visit.key, asyncio.timeout(20):
            posts = [asyncio.create_task(visit.post(BODY)) for _ in range(2 * BODIES)]
            while len(there.engine.requests) < len(posts):
                await asyncio.sleep(0.01)
            there.gate.set()
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {200}
        await here.close()


async def test_a_policy_that_does_not_answer_is_a_failure_of_the_episode(plain, monkeypatch):
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.0)
    endpoint = Endpoint(remote=RemotePolicy("http://127.0.0.1:9/v1", "m"))
    visit = Visit(endpoint, plain)
    async with endpoint.admit(visit.seat) as visit.key:
        assert (await visit.post(b"[]")).status_code == 400
        assert (await visit.post(BODY)).status_code == 503
    await endpoint.close()
    assert isinstance(visit.seat.failure, EngineError)
