"""Connections of strangers, who need no key to hold one: they end, and the memory stays."""

import asyncio

import pytest

from arpo.endpoint import connection
from tests.endpoint.serving import serving
from tests.endpoint.test_server import BODY

GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"


async def opened(visit):
    return await asyncio.open_connection("127.0.0.1", visit.endpoint.port)


async def send_without_end(writer):
    while True:
        writer.write(b"a" * 2**16)
        await writer.drain()


async def is_closed(reader):
    """Wait for the end of a connection; what was to be read on it is lost."""
    try:
        while await reader.read(2**16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTT", GET], ids=["silent", "in a line", "without an end"])
async def test_a_connection_ends_whose_head_does_not_come(plain, monkeypatch, sent):
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    async with serving(plain) as visit:
        reader, writer = await opened(visit)
        writer.write(sent)
        assert await is_closed(reader)


@pytest.mark.parametrize(
    ("sent", "rest"),
    [(GET, GET), (GET, b"\r\n"), (GET.replace(b"GET", b"POST") + b"Content-Length: 9\r\n", b"{")],
    ids=["next head", "blanks", "body"],
)
async def test_a_connection_that_was_used_ends_too_when_what_comes_next_stops(plain, monkeypatch, sent, rest):
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    async with serving(plain) as visit:
        reader, writer = await opened(visit)
        writer.write(sent + b"\r\n")
        while (await reader.readline()).strip():
            pass  # the head of the reply
        writer.write(rest)
        async with asyncio.timeout(10):
            assert await is_closed(reader)


async def test_a_head_that_comes_in_pieces_and_is_long_is_answered(plain):
    async with serving(plain) as visit:
        reader, writer = await opened(visit)
        connections = visit.endpoint._server.server_state.connections
        for piece, has_come in (
            (GET, lambda each: each.scope),
            (b"A: " + b"a" * 200_000, lambda each: each._received),
        ):
            writer.write(piece)
            while not any(map(has_come, connections)):
                await asyncio.sleep(0.01)
        writer.write(b"\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")


async def test_what_is_left_of_a_large_body_is_taken_in_behind_its_refusal(plain):
    async with serving(plain) as visit:
        reader, writer = await opened(visit)
        writer.write(GET.replace(b"GET", b"POST") + b"Content-Length: 8000000\r\n\r\n" + b"a" * 10)
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.write(b"a" * 7_999_990)
        await writer.drain()
        writer.write(GET + b"\r\n")
        assert b"invalid_api_key" in await reader.readuntil(b"HTTP/1.1 401")


async def test_an_answer_that_takes_longer_than_a_head_may_is_delivered(plain, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.1)
    async with serving(plain) as visit:
        visit.gate.clear()
        asked = asyncio.create_task(visit.post(BODY))
        await visit.asked.wait()
        await asyncio.sleep(0.3)  # more than a head may take
        visit.gate.set()
        assert (await asked).status_code == 200


@pytest.mark.parametrize(
    "begin",
    [GET + b"X: ", b"GET /", GET.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: "],
    ids=["head", "address", "trailer"],
)
async def test_a_message_without_an_end_is_cut_and_not_kept(plain, monkeypatch, begin):
    monkeypatch.setattr(connection, "HEAD_BYTES", 10_000)
    monkeypatch.setattr(connection, "MESSAGE_BYTES", 10_000)
    async with serving(plain) as visit:
        reader, writer = await opened(visit)
        writer.write(begin)
        with pytest.raises(ConnectionError):
            await send_without_end(writer)
        assert await is_closed(reader)
