"""The door of the guest server: a connection waits here, without a thread, until it has shown the secret.

A client that reaches the port, a process of the host or a neighbour, may open connections without end and say nothing,
drip, or send for ever. Threads count among the processes that a desktop may have, so none is spent on a stranger.
"""

import errno
import hmac
import io
import json
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException, parse_headers
from socket import MSG_PEEK, SHUT_RDWR, create_server, socket
from threading import BoundedSemaphore

Address = tuple[str, int]

HEAD_LIMIT_S = 5.0
"""For the whole head of a first request, from the connection on."""
LARGEST_HEAD = 16 * 2**10
MOST_WAITING = 512
"""Connections whose head has not come. One more, and the oldest of them is dropped."""
MOST_INSIDE = 64
"""Connections that have shown the secret: a driver has one or two."""
MOST_AT_ONCE = 64
ROUND_S = 0.005
"""So many connections are taken in, and then everything else of this server has its turn: a door that never rests
would keep Python's one lock from the thread that renews the desktop."""
BACKLOG = 1024

NO_SECRET = "this desktop wants the secret of its run"
_FULL = f"this desktop serves {MOST_INSIDE} connections already"
_HEAD_ENDS = b"\r\n\r\n"
_LISTENER_IS_EMPTY = (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR)


class Door:
    """The listening socket, and the strangers before it.

    Args:
        port: Where to listen.
        secret: What the head of a first request must carry; empty: every caller is let in.
        let_in: Begins to serve a connection, and returns; `leave` is called when it was served.
    """

    def __init__(self, port: int, secret: str, let_in: Callable[[socket, Address], None]) -> None:
        self._secret = secret
        self._let_in = let_in
        self._places = BoundedSemaphore(MOST_INSIDE)
        self._listener = create_server(("0.0.0.0", port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._strangers: dict[int, tuple[socket, Address, float]] = {}  # by descriptor, oldest first

    def watch(self) -> None:
        """Take connections in for ever."""
        while True:
            for descriptor, _ in self._poll.poll(self._patience_s()):
                if descriptor == self._listener.fileno():
                    self._take_in()
                elif descriptor in self._strangers:
                    self._look_at(descriptor)
            while self._strangers and self._patience_s() <= 0:
                self._drop_oldest()
            time.sleep(ROUND_S)

    def leave(self, connection: socket) -> None:
        """Close a connection that was let in, and free its place."""
        _close(connection)
        self._places.release()

    def _patience_s(self) -> float | None:
        """Return the seconds that the oldest stranger may still take; None where there is none."""
        for _, _, since in self._strangers.values():
            return max(0.0, since + HEAD_LIMIT_S - time.monotonic())
        return None

    def _take_in(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if error.errno not in _LISTENER_IS_EMPTY and self._strangers:
                    self._drop_oldest()  # there are no more descriptors
                return
            if self._secret and _is_from_inside(connection, address):
                connection.close()
                continue
            if len(self._strangers) == MOST_WAITING:
                self._drop_oldest()
            connection.setblocking(False)
            self._strangers[connection.fileno()] = connection, address, time.monotonic()
            self._poll.register(connection, select.EPOLLIN | select.EPOLLET)  # once for everything that comes

    def _look_at(self, descriptor: int) -> None:
        """Read what has come, without taking it from the server of the connection."""
        connection, address, _ = self._strangers[descriptor]
        try:
            head, ends, _ = connection.recv(LARGEST_HEAD, MSG_PEEK).partition(_HEAD_ENDS)
        except BlockingIOError:
            return
        except OSError:
            head = ends = b""
        if ends:
            self._strangers.pop(descriptor)
            self._poll.unregister(connection)
            self._decide(connection, address, head)
        elif not head or len(head) == LARGEST_HEAD:
            self._drop(descriptor)

    def _decide(self, connection: socket, address: Address, head: bytes) -> None:
        refusal = b"" if shows(self._secret, _fields(head)) else _answer("401 Unauthorized", NO_SECRET)
        if not refusal and not self._places.acquire(blocking=False):
            refusal = _answer("503 Service Unavailable", _FULL)
        if not refusal:
            connection.setblocking(True)
            self._let_in(connection, address)
            return
        with suppress(OSError):
            connection.recv(len(head) + len(_HEAD_ENDS))  # what was not read would cost the peer the answer
            connection.send(refusal)
        _close(connection)

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._strangers)))

    def _drop(self, descriptor: int) -> None:
        connection, _, _ = self._strangers.pop(descriptor)
        connection.close()  # the kernel forgets its events


def shows(secret: str, headers: Mapping[str, str]) -> bool:
    """Say whether the headers of a request carry the secret; without one, all do."""
    given = headers.get("Authorization", "")
    return not secret or hmac.compare_digest(given.encode(), f"Bearer {secret}".encode())


def _answer(status: str, message: str) -> bytes:
    body = json.dumps({"status": "error", "message": message})
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def _fields(head: bytes) -> Mapping[str, str]:
    """Return the headers of a head as the handler of the connection will read them; none if they cannot be read."""
    _, _, lines = head.partition(b"\r\n")
    try:
        return parse_headers(io.BytesIO(lines + _HEAD_ENDS))
    except HTTPException:
        return {}


def _is_from_inside(connection: socket, address: Address) -> bool:
    """Say whether a program of this desktop calls: it could keep the server busy."""
    try:
        return address[0].startswith("127.") or address[0] == connection.getsockname()[0]
    except OSError:
        return True


def _close(connection: socket) -> None:
    with suppress(OSError):
        connection.shutdown(SHUT_RDWR)
    connection.close()
