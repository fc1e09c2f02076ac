"""A policy behind an address that is busy, wrong or breaks off: what it does is not the agent's doing."""

import asyncio
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from arpo.endpoint import remote
from arpo.endpoint.remote import RemotePolicy
from arpo.endpoint.server import Endpoint
from arpo.errors import EngineError
from tests.endpoint.serving import Visit
from tests.endpoint.test_server import BODY


@asynccontextmanager
async def answering(chat, *replies):
    """Give a visit to an endpoint whose policy answers so many times, by status and body, the last one for ever."""
    left, seen = list(replies), []

    async def answer(reader, writer):
        with suppress(asyncio.IncompleteReadError):  # the other side has closed
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                seen.append(await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0])))
                status, length, body = left.pop(0) if len(left) > 1 else left[0]
                writer.write(f"HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\n\r\n".encode() + body)
                if length != len(body):
                    break
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        here = Endpoint(remote=RemotePolicy(address, "gpt"))
        visit = Visit(here, chat)
        visit.seen = seen
        async with here.admit(visit.seat) as visit.key:
            yield visit
        await here.close()


BUSY, LIMITED, WELL = (503, 4, b"busy"), (429, 4, b"slow"), (200, 2, b"{}")


async def test_an_address_that_is_busy_is_asked_again(plain, monkeypatch):
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.0)
    async with answering(plain, BUSY, LIMITED, BUSY, WELL) as visit:
        assert (await visit.post(BODY)).status_code == 200
        assert len(visit.seen) == 4
        assert visit.seat.failure is None


@pytest.mark.parametrize(
    ("reply", "asked", "problem"),
    [
        (BUSY, 6, "answers 503: busy"),
        (LIMITED, 6, "answers 429: slow"),
        ((401, 7, b"bad\nkey"), 1, r"answers 401: bad\\nkey; check policy, policy_model and ARPO_POLICY_KEY"),
        ((404, 8, b"no model"), 1, "answers 404: no model; check policy"),
        ((301, 4, b"away"), 1, "answers 301: away; check policy"),
    ],
)
async def test_what_no_agent_can_help_is_a_failure_of_the_episode(plain, monkeypatch, reply, asked, problem):
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.0)
    async with answering(plain, reply) as visit:
        assert (await visit.post(BODY)).status_code == 503
        assert len(visit.seen) == asked
        with pytest.raises(EngineError, match=problem):
            raise visit.seat.failure


async def test_a_reply_that_breaks_off_is_a_failure_of_the_episode(plain):
    async with answering(plain, (200, 100, b'{"half":')) as visit:
        with pytest.raises(httpx.HTTPError):
            await visit.post(BODY)
        with pytest.raises(EngineError, match="broke off its reply"):
            raise visit.seat.failure


@pytest.mark.parametrize("slow", [False, True])
async def test_a_reply_that_breaks_off_because_its_agent_does_not_read_on_voids_nothing(plain, monkeypatch, slow):
    monkeypatch.setattr(remote, "SLOW_S", 0.2)
    failures = []
    async with answering(plain, (200, 100, b'{"half":')) as visit:
        reply = await visit.endpoint.remote.forward("/v1/chat/completions", b"{}", failures.append)
        await anext(reply.body_iterator)
        await asyncio.sleep(0.3 * slow)
        with pytest.raises(httpx.HTTPError):
            await anext(reply.body_iterator)
    assert len(failures) == (not slow)


async def test_a_refusal_of_what_is_asked_is_for_the_agent_to_read(plain):
    async with answering(plain, (400, 8, b"too long")) as visit:
        reply = await visit.post(BODY)
        assert (reply.status_code, reply.text, visit.seat.failure) == (400, "too long", None)


@pytest.mark.parametrize(
    ("failing", "tries"), [(BUSY, 6), ((404, 7, b"no path"), 1)], ids=["what it breaks at", "where it is not"]
)
async def test_an_agent_voids_no_episode_by_a_request_that_the_address_alone_fails_at(
    plain, monkeypatch, failing, tries
):
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.0)
    async with answering(plain, WELL, *[failing] * tries, WELL, failing, WELL) as visit:
        assert (await visit.post(BODY)).status_code == 200
        refused = await visit.post(BODY, "/v1/responses")
        assert (refused.status_code, visit.seat.failure) == (400, None)
        assert b'"Hi"' in visit.seen[-2]  # asked between two failures, where it had answered
        assert (await visit.post(BODY)).status_code == 200


@pytest.mark.parametrize(
    "later", [[*[BUSY] * 6, WELL, WELL], [*[BUSY] * 6, WELL, LIMITED], [LIMITED], [BUSY], [*[BUSY] * 6, LIMITED]]
)
async def test_an_address_that_fails_at_others_too_is_no_fault_of_the_agent(plain, monkeypatch, later):
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.0)
    async with answering(plain, WELL, *later) as visit:
        replies = [(await visit.post(BODY)).status_code for _ in range(2)]
        failed = later[-1] != WELL
        assert replies == [200, 503 if failed else 200]
        assert isinstance(visit.seat.failure, EngineError) == failed


@pytest.mark.parametrize("body", [b"[]", b'{"\xff": 1}', b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"])
async def test_a_body_that_is_no_object_is_refused(plain, body):
    async with answering(plain, WELL) as visit:
        assert (await visit.post(body)).status_code == 400


async def test_an_endpoint_that_comes_after_another_one_has_connections_of_its_own(plain):
    async with answering(plain, WELL) as visit:
        policy = visit.endpoint.remote
        await Endpoint(remote=policy).close()
        assert (await visit.post(BODY)).status_code == 200
