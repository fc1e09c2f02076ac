"""HTTP connections that end where a head does not: a stranger's would otherwise hold places and fill the memory."""

import asyncio
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""The time for the head of a request to arrive, on a new connection and on a used one."""
HEAD_BYTES = 256 * 2**10
MESSAGE_BYTES = 128 * 2**20
"""Head, body and what is around its pieces; the server's own limit of a body is lower, but knows no trailers."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection of uvicorn's that is closed when a request's head is late, or head or whole are too long.

    uvicorn ends connections that are idle after a reply, and counts them, but waits for ever for a head, which its
    parser keeps whatever its length.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._late: asyncio.TimerHandle | None = None
        """Runs while a head is waited for."""
        self._received, self._most = 0, HEAD_BYTES

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    @override
    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self._late is None and self.cycle is not None and self.cycle.response_complete:
            self._await_head()  # the rest of a body or blanks, at which uvicorn stops to wait for an end
        if self._received > self._most:
            self.transport.close()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._received, self._most = 0, HEAD_BYTES
        if self._late is None:  # the connection has had a request before
            self._await_head()

    @override
    def on_headers_complete(self) -> None:
        self._stop_waiting()
        self._most = MESSAGE_BYTES
        super().on_headers_complete()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._late = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
