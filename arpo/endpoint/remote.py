"""A model behind an address of OpenAI's or Anthropic's dialect, in the place of our engine, to be evaluated."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
from starlette.responses import Response as Reply
from starlette.responses import StreamingResponse
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from arpo.endpoint.wire import chat, messages, responses
from arpo.endpoint.wire.common import invalid
from arpo.errors import EngineError, quoted

log = logging.getLogger(__name__)

TIMEOUT_S = 600.0
TRIES = 6
LONGEST_WAIT_S = 30.0
SLOW_S = 10.0
"""The time for an agent to take in a piece of a reply; behind a longer one, it may be why the reply breaks off."""
PASSED = ("content-type",)
NOT_OF_THE_AGENT = (301, 302, 307, 308, 401, 402, 403, 404, 405)
"""Statuses that say that key, credit, address or name of the model is wrong."""
ITS_OWN = (401, 402, 429)
"""Statuses that no content of a request explains."""
PLAIN: Mapping[str, Mapping[str, Any]] = {
    chat.PATH: {"messages": [{"role": "user", "content": "Hi"}]},
    responses.PATH: {"input": "Hi"},
    messages.PATH: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16},
}
"""Requests that every model answers, by path."""


class AddressError(EngineError):
    """An address that does not answer a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """503 where there was no reply."""

    @property
    def busy(self) -> bool:
        """Whether it may answer later: it is down, or too many ask."""
        return self.status == 429 or self.status >= 500


@dataclass(frozen=True, slots=True)
class RemotePolicy:
    """A model that agents reach through the endpoint: their requests as they are, but for its name and its key."""

    address: str
    """As OpenAI's clients take it, such as `https://host/v1`."""
    model: str
    key: str = field(default="", repr=False)
    client: httpx.AsyncClient = field(
        init=False,
        repr=False,
        default_factory=lambda: httpx.AsyncClient(timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=None)),
    )
    """Its connections, which stay open from one request to the next."""
    _answered: set[str] = field(init=False, repr=False, compare=False, default_factory=set)
    """The paths on which it has answered."""

    async def forward(self, path: str, body: bytes, fail: Callable[[Exception], None]) -> Reply:
        """Pass a request on, and return the reply as it comes; `fail` is called where it breaks off.

        What a request is refused for, such as its length, is the agent's to read. An address that is busy is asked
        again, `TRIES` times with growing pauses. What it fails at again while it answers another request is refused.

        Raises:
            EngineError: If the address does not answer, or takes neither the key nor the model's name.
            RefusedError: If it is this request that it does not answer: an agent must not void its episode by one.
        """
        try:
            asked = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(f"the body must be an object in JSON: {error}") from error
        request = self._request(path, asked)
        try:
            reply = await self._sent(request)
            if reply.is_success:
                self._answered.add(path)
        except AddressError as error:
            if error.status in ITS_OWN or not await self._is_well():
                raise
            try:
                reply = await self._send(request)  # it may be well since a moment ago
            except AddressError as second:
                if second.status in ITS_OWN:
                    raise
                log.warning("the policy answers other requests than this one, which is refused: %s", error)
                raise invalid("the policy answers other requests, and fails at this one: change it") from error

        async def pieces() -> AsyncIterator[bytes]:
            slowest = 0.0
            try:
                async for piece in reply.aiter_bytes():
                    given = time.monotonic()
                    yield piece
                    slowest = max(slowest, time.monotonic() - given)
            except httpx.HTTPError as error:
                if slowest < SLOW_S:
                    fail(EngineError(f"the policy at {self.address} broke off its reply: {error}"))
                raise
            finally:
                await reply.aclose()

        passed = {name: reply.headers[name] for name in PASSED if name in reply.headers}
        return StreamingResponse(pieces(), reply.status_code, passed)

    def _request(self, path: str, asked: Mapping[str, Any]) -> httpx.Request:
        content = msgspec.json.encode({**asked, "model": self.model})
        headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        if self.key:  # servers of one's own often have none
            headers |= {"Authorization": f"Bearer {self.key}", "x-api-key": self.key}
        address = f"{self.address.rstrip('/').removesuffix('/v1')}{path}"
        return self.client.build_request("POST", address, content=content, headers=headers)

    async def _is_well(self) -> bool:
        """Return whether the address answers a plain request where it has answered before."""
        if not self._answered:
            return False
        path = min(self._answered)
        try:
            reply = await self._send(self._request(path, PLAIN[path]))
        except AddressError:
            return False
        await reply.aclose()
        return reply.is_success

    async def _sent(self, request: httpx.Request) -> httpx.Response:
        pause = wait_random_exponential(max=LONGEST_WAIT_S)
        busy = retry_if_exception(lambda error: isinstance(error, AddressError) and error.busy)
        again = AsyncRetrying(retry=busy, stop=stop_after_attempt(TRIES), wait=pause, reraise=True)
        reply: httpx.Response = await again(self._send, request)
        return reply

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            reply = await self.client.send(request, stream=True)
            status = reply.status_code
            if status not in NOT_OF_THE_AGENT and status != 429 and status < 500:
                return reply
            said = quoted((await reply.aread()).decode(errors="replace"), most=300)
        except httpx.HTTPError as error:
            raise AddressError(503, f"the policy at {self.address} does not answer: {error!r}") from error
        failed = AddressError(status, f"the policy at {self.address} answers {status}: {said}")
        if not failed.busy:
            failed = AddressError(status, f"{failed}; check policy, policy_model and ARPO_POLICY_KEY")
        raise failed
