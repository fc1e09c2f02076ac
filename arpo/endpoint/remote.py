"""A model behind an address of OpenAI's or Anthropic's dialect, in the place of our engine, to be evaluated."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import msgspec
from starlette.responses import Response as Reply
from starlette.responses import StreamingResponse

from arpo.endpoint.wire.common import invalid
from arpo.errors import EngineError

TIMEOUT_S = 600.0
PASSED = ("content-type", "retry-after")


@dataclass(frozen=True, slots=True)
class RemotePolicy:
    """A model that agents reach through the endpoint: their requests as they are, but for its name and its key."""

    address: str
    """As OpenAI's clients take it, such as `https://host/v1`."""
    model: str
    key: str = field(default="", repr=False)

    async def forward(self, path: str, body: bytes) -> Reply:
        """Pass a request on, and return the reply as it comes.

        Raises:
            EngineError: If the address does not answer.
        """
        try:
            asked = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise invalid(f"the body must be an object in JSON: {error}") from error
        content = msgspec.json.encode(asked | {"model": msgspec.Raw(msgspec.json.encode(self.model))})
        headers = {"Authorization": f"Bearer {self.key}", "x-api-key": self.key, "anthropic-version": "2023-06-01"}
        headers["Content-Type"] = "application/json"
        client = httpx.AsyncClient(timeout=TIMEOUT_S)
        address = f"{self.address.rstrip('/').removesuffix('/v1')}{path}"
        request = client.build_request("POST", address, content=content, headers=headers)
        try:
            reply = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            await client.aclose()
            raise EngineError(f"the policy at {self.address} does not answer: {error}") from error

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in reply.aiter_bytes():
                    yield piece
            finally:
                await client.aclose()

        passed = {name: reply.headers[name] for name in PASSED if name in reply.headers}
        return StreamingResponse(pieces(), reply.status_code, passed)
