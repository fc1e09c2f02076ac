"""A model behind an address of OpenAI's or Anthropic's dialect, in the place of our engine, to be evaluated."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import httpx
import msgspec
from starlette.responses import Response as Reply
from starlette.responses import StreamingResponse
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from arpo.endpoint.wire.common import invalid
from arpo.errors import EngineError, quoted

TIMEOUT_S = 600.0
TRIES = 6
LONGEST_WAIT_S = 30.0
PASSED = ("content-type",)
NOT_OF_THE_AGENT = (401, 402, 403, 404)
"""Statuses that say that key, credit, address or name of the model is wrong: no agent can help it."""


class BusyError(EngineError):
    """An address that does not answer now: it is down, or too many ask."""


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

    async def forward(self, path: str, body: bytes, fail: Callable[[Exception], None]) -> Reply:
        """Pass a request on, and return the reply as it comes; `fail` is called where it breaks off.

        What a request is refused for, such as its length, is the agent's to read. An address that is busy is asked
        again, `TRIES` times with growing pauses.

        Raises:
            EngineError: If the address does not answer, or takes neither the key nor the model's name.
        """
        try:
            asked = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise invalid(f"the body must be an object in JSON: {error}") from error
        content = msgspec.json.encode(asked | {"model": msgspec.Raw(msgspec.json.encode(self.model))})
        headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
        if self.key:  # servers of one's own often have none
            headers |= {"Authorization": f"Bearer {self.key}", "x-api-key": self.key}
        address = f"{self.address.rstrip('/').removesuffix('/v1')}{path}"
        request = self.client.build_request("POST", address, content=content, headers=headers)
        pause = wait_random_exponential(max=LONGEST_WAIT_S)
        again = AsyncRetrying(
            retry=retry_if_exception_type(BusyError), stop=stop_after_attempt(TRIES), wait=pause, reraise=True
        )
        reply: httpx.Response = await again(self._send, request)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in reply.aiter_bytes():
                    yield piece
            except httpx.HTTPError as error:
                fail(EngineError(f"the policy at {self.address} broke off its reply: {error}"))
                raise
            finally:
                await reply.aclose()

        passed = {name: reply.headers[name] for name in PASSED if name in reply.headers}
        return StreamingResponse(pieces(), reply.status_code, passed)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            reply = await self.client.send(request, stream=True)
            busy = reply.status_code == 429 or reply.status_code >= 500
            if not busy and reply.status_code not in NOT_OF_THE_AGENT:
                return reply
            said = quoted((await reply.aread()).decode(errors="replace"), most=300)
        except httpx.HTTPError as error:
            raise BusyError(f"the policy at {self.address} does not answer: {error!r}") from error
        problem = f"the policy at {self.address} answers {reply.status_code}: {said}"
        if busy:
            raise BusyError(problem)
        raise EngineError(f"{problem}; check policy, policy_model and ARPO_POLICY_KEY")
