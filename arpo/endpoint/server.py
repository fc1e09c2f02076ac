"""The recording endpoint: requests of foreign agents over HTTP on loopback, answered by an engine and recorded.

A request is read, rendered and opened in a thread, one at a time for each session; engines answer on the event loop.
An answer counts as delivered just before the last byte of its reply is sent, and as asked for no more once the agent
is gone that asked for it. A request that is sent again joins the first one, or gets the same answer.
"""

import asyncio
import hashlib
import logging
import resource
import secrets
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response as Reply
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from arpo.endpoint.connection import BoundedProtocol
from arpo.endpoint.conversation import Answer, Stamp
from arpo.endpoint.remote import RemotePolicy
from arpo.endpoint.session import UNHONOURED, Session, Turn
from arpo.endpoint.wire import messages, openai
from arpo.endpoint.wire.common import Limits, Pictures, Reader, invalid, models, status_of
from arpo.endpoint.wire.dialects import DIALECTS, Dialect
from arpo.errors import EngineError, RefusedError, RequestError
from arpo.inference.engine import GenerateRequest, Response

KEEPALIVE_S = 5.0
"""Between two signs of life in a stream that has no answer yet."""
BODY_S = 60.0
"""The time for a body to arrive."""
READ_S = 60.0
"""The time for an agent to take in a piece of a reply."""
BODIES = 2
"""Bodies of one session that are taken in at a time."""
AT_ONCE = 16
"""Answers of one session that an engine is asked for at a time: one request may have as many."""
CONNECTIONS = 2048
CLOSED = 4096
"""Keys that are remembered after the end of their episodes."""
THREADS = 2

log = logging.getLogger(__name__)

Generate = Callable[[GenerateRequest], Awaitable[Response]]
Handler = Callable[[Request, "Seat"], Awaitable[Reply]]


class AgentGoneError(Exception):
    """An agent that has closed the connection on which it waited."""


@dataclass(slots=True, eq=False)
class Flight:
    """The answers to one request, while they are made and until they are delivered."""

    turns: tuple[Turn, ...]
    stamp: Stamp
    task: "asyncio.Task[tuple[Answer, ...]]"
    waiting: int = 0
    """Connections on which the answers are waited for."""


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one episode at the endpoint."""

    session: Session
    generate: Generate
    least_version: int = 0
    """The oldest policy version that may answer."""
    strict: bool = False
    """Whether requests with options that would have no effect are refused."""
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    """What its key opens beside the model, by path."""
    failure: Exception | None = None
    """The engine's, after which the episode says nothing about the policy."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing that the agent may still do counts."""
    pictures: Pictures = field(default_factory=Pictures)
    flights: dict[str, Flight] = field(default_factory=dict)
    """Those whose answers are not delivered, by the name of the first turn."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for every call of the session."""
    bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(BODIES))
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def fail(self, error: Exception) -> None:
        """End the episode by a failure; the first one counts."""
        self.failure = self.failure or error
        self.over.set()

    async def answer(self, turns: Sequence[Turn]) -> tuple[Answer, ...]:
        """Return the engine's answers of some turns, recorded; turns that it does not answer are dropped."""

        async def ask(turn: Turn) -> Response:
            async with self.asking:
                return await self.generate(turn.request)

        asked = [asyncio.ensure_future(ask(turn)) for turn in turns]
        try:
            responses = await asyncio.gather(*asked)
            async with self.lock:
                return tuple(self.session.record(turn, each) for turn, each in zip(turns, responses, strict=True))
        except RefusedError:  # the session was closed meanwhile
            raise
        except RequestError as error:  # what an agent can cause must not void its episode
            async with self.lock:
                self.session.refuse(turns)
            raise RefusedError("invalid", f"the model does not take this: {error}") from error
        except Exception as error:
            self.fail(error)
            raise RefusedError("unavailable", "the engine has failed, and this episode with it: stop") from error
        finally:
            for each in asked:
                each.cancel()
            async with self.lock:
                self.session.drop(turns)  # those without a response


class Endpoint:
    """A server for the agents of many episodes, each of which has a key of its own. Lives on one event loop."""

    def __init__(self, limits: Limits | None = None, remote: RemotePolicy | None = None) -> None:
        self.limits = limits or Limits()
        self.remote = remote and replace(remote)  # with connections of its own, which end with it
        self.port = 0
        self._seats: dict[bytes, Seat] = {}
        self._closed = OrderedDict[bytes, None]()
        self._counts = Counter[str]()
        self._created = int(time.time())
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="endpoint")
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    # --- its life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve on a free port of loopback; an episode does so too, where no server is left."""
        usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= usual < 2 * CONNECTIONS:  # agents that keep connections open must leave files for the rest of the run
            wanted = 2 * CONNECTIONS if most < 0 else min(most, 2 * CONNECTIONS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        routes = [
            Route(dialect.path, partial(self._answered, dialect), methods=["POST"]) for dialect in DIALECTS.values()
        ]
        app = Starlette(
            routes=[
                *routes,
                Route(messages.COUNT_PATH, self._counted, methods=["POST"]),
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/desktop/{key}/{path:path}", self._handled, methods=["GET", "POST"]),
                Route("/{path:path}", self._handled, methods=["GET", "POST"]),
            ],
            exception_handlers={RefusedError: _refused, AgentGoneError: _unread},
        )
        listening = socket.create_server(("127.0.0.1", 0))
        # Accepted sockets inherit it; asyncio sets it for those alone whose protocol is named. Without: 40 ms a reply.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=BoundedProtocol,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=1,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """End the server and every connection; idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None and self._server is not None:
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
        if self.remote is not None:
            await self.remote.client.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def admit(self, seat: Seat) -> AsyncIterator[str]:
        """Serve the agent of an episode under a key that this gives, and close its session.

        Raises:
            EngineError: If the server has ended meanwhile: what the agent did says nothing about the policy. The next
                episode has a new one.
        """
        async with self._starting:
            if self._serving is None or self._serving.done():
                await self.start()
        serving = self._serving
        key = secrets.token_urlsafe(32)
        self._seats[_digest(key)] = seat
        try:
            yield key
            if serving is None or serving.done():
                raise EngineError("the endpoint's server has ended within the episode; see the log")
        finally:
            seat.over.set()  # what waits for the lock is refused
            del self._seats[_digest(key)]
            self._closed[_digest(key)] = None
            if len(self._closed) > CLOSED:
                self._closed.popitem(last=False)
            try:
                async with seat.lock:
                    seat.session.close()
            finally:  # those too that have begun meanwhile
                for flight in list(seat.flights.values()):
                    flight.task.cancel()
            counts = seat.session.counters()
            if ignored := [name for name in counts if name.startswith(UNHONOURED) and name not in self._counts]:
                log.warning("the agent sets %s without effect: sampling is the run's", ", ".join(ignored))
            self._counts.update({"episodes": 1, **counts})

    def counters(self) -> dict[str, float]:
        """Return the counts of the sessions that have ended, by metric."""
        return {f"harness/{name}": float(count) for name, count in self._counts.items()}

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _answered(self, dialect: Dialect, request: Request) -> Reply:
        seat = self._seat(request.headers.get("x-api-key") or _bearer(request))
        if self.remote is not None:
            return await self._forwarded(self.remote, dialect, request, seat)
        async with seat.bodies:  # until it is read: else those that wait for the lock would fill the memory
            body = await self.body(request, self.limits.body_bytes)
            async with seat.lock:
                if seat.over.is_set():
                    raise _closed()
                work = partial(self._opened, seat, dialect, body, request.headers)
                turns, stamp = await asyncio.get_running_loop().run_in_executor(self._threads, work)
                flight = seat.flights.get(turns[0].name) or self._begun(seat, turns, stamp)
                flight.waiting += 1
                return Delivery(seat, flight, dialect)

    async def _forwarded(self, remote: RemotePolicy, dialect: Dialect, request: Request, seat: Seat) -> Reply:
        async with seat.asking:  # before the body is taken in, which is kept until there is an answer
            async with seat.bodies:
                body = await self.body(request, self.limits.body_bytes)
            if seat.over.is_set():
                raise _closed()
            seat.session.count_forwarded()
            try:
                return await remote.forward(dialect.path, body, seat.fail)
            except EngineError as error:
                seat.fail(error)
                raise RefusedError("unavailable", "the policy does not answer: this episode ends with it") from error

    def _opened(
        self, seat: Seat, dialect: Dialect, body: bytes, headers: Mapping[str, str]
    ) -> tuple[tuple[Turn, ...], Stamp]:
        """Read a request and return its turns: those of an earlier one, if it is sent again. Called in a thread."""
        ask = dialect.parse(body, Reader(seat.pictures, self.limits))
        named = headers.get("idempotency-key", "")
        # A request is known by what was read, whose pictures keep their hashes: a body may have many megabytes.
        retry_key = dialect.path, named or ask
        again = named or headers.get("x-stainless-retry-count", "0") != "0"
        kept = seat.session.known(retry_key, ask)
        if kept is not None and (again or self._was_lost(seat, kept.turns)):
            return kept.turns, kept.stamp
        if seat.strict and ask.unhonoured:
            names = ", ".join(sorted({option[:40] for option in ask.unhonoured})[:AT_ONCE])
            raise invalid(f"without effect, as sampling is the run's: {names}; leave out, or set harness.strict=false")
        turns = tuple(seat.session.open(ask, least_version=seat.least_version))
        stamp = Stamp(turns[0].name, int(time.time()), ask.alias, ask.stream_usage)
        seat.session.remember(retry_key, turns, stamp)
        return turns, stamp

    def _was_lost(self, seat: Seat, turns: Sequence[Turn]) -> bool:
        """Return whether the answers of turns are ready, and the agent that asked was gone before it had them."""
        flight = seat.flights.get(turns[0].name)
        return flight is not None and flight.task.done() and not flight.waiting

    def _begun(self, seat: Seat, turns: tuple[Turn, ...], stamp: Stamp) -> Flight:
        """Return a new flight: of answers that are recorded, or of those that the engine is to give."""
        recorded = seat.session.answers(turns)

        async def known() -> tuple[Answer, ...]:
            assert recorded is not None
            return recorded

        work = seat.answer(turns) if recorded is None else known()
        flight = Flight(turns, stamp, asyncio.create_task(work))

        def settle(task: "asyncio.Task[tuple[Answer, ...]]") -> None:
            if not task.cancelled() and task.exception() is not None:  # there is nothing to deliver
                seat.flights.pop(turns[0].name, None)

        flight.task.add_done_callback(settle)
        if recorded is None:
            seat.flights[turns[0].name] = flight
        return flight

    async def _counted(self, request: Request) -> Reply:
        """Count the tokens of a context, which takes a turn at the session as an answer does."""
        dialect = DIALECTS["messages"]
        seat = self._seat(request.headers.get("x-api-key") or _bearer(request))
        async with seat.bodies:
            body = await self.body(request, self.limits.body_bytes)

        def count() -> int:
            return seat.session.count(dialect.parse(body, Reader(seat.pictures, self.limits)))

        async with seat.lock:
            counted = await asyncio.get_running_loop().run_in_executor(self._threads, count)
        return Reply(messages.token_count(counted), media_type="application/json")

    async def _models(self, request: Request) -> Reply:
        seat = self._seat(request.headers.get("x-api-key") or _bearer(request))
        return Reply(models(seat.session.aliases, self._created), media_type="application/json")

    async def _handled(self, request: Request) -> Reply:
        seat = self._seat(request.path_params.get("key") or _bearer(request))
        handler = seat.handlers.get(request.path_params["path"])
        if handler is None:
            paths = ", ".join([dialect.path for dialect in DIALECTS.values()] + [f"/{path}" for path in seat.handlers])
            raise RefusedError("not_found", f"there is nothing at {request.url.path[:80]!r}: choose {paths}")
        return await handler(request, seat)

    def _seat(self, key: str) -> Seat:
        digest = _digest(key)
        if (seat := self._seats.get(digest)) is not None:
            return seat
        if digest in self._closed:
            raise _closed()
        raise RefusedError("invalid_api_key", "no episode has this key: send the one that the harness was given")

    async def body(self, request: Request, most: int) -> bytes:
        """Return the body of a request, if it has at most so many bytes."""
        parts, size = list[bytes](), 0
        declared = request.headers.get("content-length", "0")
        try:
            async with asyncio.timeout(BODY_S):
                if declared.isdecimal() and int(declared[:20]) <= most:
                    async for part in request.stream():
                        parts.append(part)
                        if (size := size + len(part)) > most:
                            break
        except TimeoutError:
            raise RefusedError("invalid", f"the body did not arrive within {BODY_S:g} s: send it at once") from None
        except ClientDisconnect as error:
            raise AgentGoneError from error
        if size > most or not declared.isdecimal() or int(declared[:20]) > most:
            raise RefusedError("too_large", f"the body has more than {most} bytes: send less")
        return b"".join(parts)


class Delivery(Reply):
    """The reply with the answers of a flight, which are delivered just before its last byte."""

    def __init__(self, seat: Seat, flight: Flight, dialect: Dialect) -> None:
        self._seat, self._flight, self._dialect = seat, flight, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply; where the agent is gone before, the answers stay undelivered."""
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            reply = self._streamed if self._flight.turns[0].ask.stream else self._whole
            with suppress(AgentGoneError, TimeoutError):
                await reply(scope, receive, send, gone)
        finally:
            gone.cancel()
            self._flight.waiting -= 1
            if not self._flight.task.done():
                async with self._seat.lock:  # in which another request may have joined
                    self._give_up()

    def _give_up(self) -> None:
        """Ask for the answers no more, if no agent waits for them; a later request gets others."""
        flight = self._flight
        if not flight.waiting and not flight.task.done():
            flight.task.cancel()
            self._seat.session.drop(flight.turns)
            self._seat.flights.pop(flight.turns[0].name, None)

    async def _whole(self, scope: Scope, receive: Receive, send: Send, gone: "asyncio.Future[None]") -> None:
        try:
            async for _ in self._waiting(gone):
                pass
            body = self._dialect.reply(self._flight.task.result(), self._flight.stamp)
            await self._deliver()
        except RefusedError as refusal:
            await reply_of(refusal, self._dialect.error)(scope, receive, send)
        else:
            await Reply(body, media_type="application/json")(scope, receive, send)

    async def _streamed(self, scope: Scope, receive: Receive, send: Send, gone: "asyncio.Future[None]") -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def piece(content: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(READ_S):
                await send({"type": "http.response.body", "body": content, "more_body": more})

        try:
            async for _ in self._waiting(gone):
                await piece(self._dialect.keepalive)
            *pieces, last = self._dialect.events(self._flight.task.result(), self._flight.stamp)
            for each in pieces:
                await piece(each)
            if gone.done():
                raise AgentGoneError
            await self._deliver()
        except RefusedError as refusal:
            last = self._dialect.failure(refusal)
        await piece(last, more=False)

    async def _waiting(self, gone: "asyncio.Future[None]") -> AsyncIterator[None]:
        """Yield now and then until the answers are there."""
        task = self._flight.task
        while not task.done():
            await asyncio.wait((task, gone), timeout=KEEPALIVE_S, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise AgentGoneError
            if not task.done():
                yield
        if task.cancelled():
            raise _closed()

    async def _deliver(self) -> None:
        async with self._seat.lock:
            self._seat.session.deliver(self._flight.turns)
        self._seat.flights.pop(self._flight.turns[0].name, None)


def _closed() -> RefusedError:
    return RefusedError("closed", "the episode of this key has ended: stop, and ask for nothing more")


def reply_of(refusal: RefusedError, error: Callable[[RefusedError], bytes] = openai.error) -> Reply:
    """Return a refusal as a reply."""
    status, headers = status_of(refusal)
    if refusal.kind == "too_large":  # or the server would take in the rest of the body
        headers["Connection"] = "close"
    return Reply(error(refusal), status, headers, "application/json")


async def _refused(request: Request, refusal: Exception) -> Reply:
    assert isinstance(refusal, RefusedError), "the handler of no other error"
    of_anthropic = request.url.path in (messages.PATH, messages.COUNT_PATH)
    return reply_of(refusal, messages.error if of_anthropic else openai.error)


async def _unread(_: Request, __: Exception) -> Reply:
    return Reply(status_code=400)  # of which no agent is left to read anything


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _bearer(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _digest(key: str) -> bytes:
    """Return a digest by which a key is looked up: how long a look takes says nothing about the key."""
    return hashlib.sha256(key.encode(errors="replace")).digest()
