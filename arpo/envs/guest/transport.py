"""The way to a server in a guest: one deadline for a whole call, a limit of bytes, and nothing that unpacks itself.

What sits at the other end may be an agent's work. It may drip an answer, send headers for ever, or a few bytes that
become gigabytes; all it can cost is the deadline and the limit.
"""

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpcore
import httpx

from arpo.errors import EnvError

CONNECT_TIMEOUT_S = 2.0
LARGEST_HEAD, CRLF = 4096, b"\r\n"
LARGEST_ANSWER = 16 * 2**20
"""Bytes of an answer where no other limit is given."""
KEPT_ALIVE_S = 5.0
"""Seconds for which a connection without a call stays open."""


class NoAnswerError(EnvError):
    """A call without a whole answer: a deadline passed, or what came was refused."""


class BrokenConnectionError(NoAnswerError):
    """A call whose connection broke before its deadline; the next one may go well."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    content: bytes


class Transport:
    """A client of one HTTP server that trusts it with nothing. Any thread may call it.

    Every request carries the secret, if there is one; errors call the server by `name`, else by its address.
    """

    def __init__(self, address: str, secret: str = "", *, name: str | None = None) -> None:
        self._address = address
        self._name = name or address
        self._headers = {"Accept-Encoding": "identity"}
        if secret:
            self._headers["Authorization"] = f"Bearer {secret}"
        self._pool = httpcore.ConnectionPool(network_backend=_Backend(), keepalive_expiry=KEPT_ALIVE_S)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def ask(
        self, method: str, path: str, *, timeout_s: float, most_bytes: int = LARGEST_ANSWER, **content: Any
    ) -> Answer:
        """Make one request and return its whole answer, whatever its status.

        Args:
            timeout_s: From the connection to the last byte.
            content: What `httpx.Request` takes: `params`, `json`, or `data` and `files`.

        Raises:
            BrokenConnectionError: If the connection broke.
            NoAnswerError: If the deadline passed, or the answer is too long or packed.
        """
        request = httpx.Request(method, self._address + path, headers=self._headers, **content)
        began = time.monotonic()
        try:
            with self._pool.stream(
                method,
                str(request.url),
                headers=request.headers.raw,
                content=request.read() or None,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write"), began + timeout_s)},
            ) as response:
                return Answer(response.status, self._body(response, most_bytes))
        except httpcore.TimeoutException as error:
            passed_s = time.monotonic() - began
            trouble = f"{type(error).__name__}: the answer was not complete after {passed_s:.1f} s"
            raise NoAnswerError("guest", f"{method} {request.url.path} of {self._name}: {trouble}") from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            trouble = f"{type(error).__name__}: {error}"
            raise BrokenConnectionError("guest", f"{method} {request.url.path} of {self._name}: {trouble}") from error
        except _RefusedError as error:
            raise NoAnswerError("guest", f"{method} {request.url.path} of {self._name}: {error}") from error

    def tunnel(self, path: str, *, timeout_s: float) -> socket.socket:
        """Return the connection of a request, which the server has made one to somewhere else."""
        address = urlsplit(self._address)
        head = "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        try:
            connection = socket.create_connection((address.hostname, address.port), CONNECT_TIMEOUT_S)
            connection.settimeout(timeout_s)
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n{head}\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n") and len(answer) < LARGEST_HEAD:
                answer += connection.recv(1) or b"\r\n\r\n"
        except OSError as error:
            raise NoAnswerError("guest", f"GET {path} of {self._name}: {type(error).__name__}: {error}") from error
        if not answer.startswith(b"HTTP/1.1 200 "):
            connection.close()
            raise NoAnswerError("guest", f"GET {path} of {self._name}: {answer.partition(CRLF)[0].decode('latin-1')}")
        return connection

    def _body(self, response: httpcore.Response, most_bytes: int) -> bytes:
        for name, value in response.headers:
            if name.lower() == b"content-encoding":
                raise _RefusedError(f"the answer is packed ({value[:40]!r}), and was asked for without packing")
        chunks, size = [], 0  # one buffer that grows would be copied, and an answer without end would cost it twice
        for chunk in response.iter_stream():
            size += len(chunk)
            if size > most_bytes:
                raise _RefusedError(f"the answer has more than {most_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)


class _RefusedError(Exception):
    """Raised on an answer that is not read."""


class _Backend(httpcore.NetworkBackend):
    """A maker of connections whose timeouts are points in time: httpcore would count each one from its own call.

    So no number of small steps takes longer than the whole: the moment comes with every request, and whatever is read
    from the socket or written to it ends then.
    """

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = min(CONNECT_TIMEOUT_S, _left(timeout, httpcore.ConnectTimeout))
        return _Stream(self._inner.connect_tcp(host, port, left_s, local_address, socket_options))


class _Stream(httpcore.NetworkStream):
    """A connection whose timeouts are points in time of `time.monotonic`."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._socket = inner.get_extra_info("socket")

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._socket.settimeout(_left(timeout, httpcore.WriteTimeout))
        try:
            self._socket.sendall(buffer)  # unlike `send` in a loop, it has one timeout for all of the bytes
        except TimeoutError as error:
            raise httpcore.WriteTimeout(error) from error
        except OSError as error:
            raise httpcore.WriteError(error) from error

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _left(deadline: float | None, error: type[httpcore.TimeoutException]) -> float:
    """Return the seconds until a deadline; every call has one."""
    assert deadline is not None
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise error
    return left_s
