"""Floods from outside: whoever reaches the port of a desktop and does not know its secret."""

import errno
import socket
import struct
import threading
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, count, repeat

CONNECTIONS = 700
"""More than a desktop may have processes, and threads."""
PAUSE_S = 0.1
"""Between two rounds of a flood that goes on: it is to be wide, and this machine is the victim's too."""
HEAD = b"POST /setup/upload HTTP/1.1\r\nHost: desktop\r\n"
BODY = b"a" * 65536


FLOODS = {
    "silence": lambda number: repeat(b""),
    "headers that drip": lambda number: chain([HEAD + b"X-"], repeat(b"a")),
    "headers without end": lambda number: chain([HEAD], (b"X-%d: a\r\n" % line for line in count())),
    "one header without end": lambda number: chain([HEAD + b"X: "], repeat(BODY)),
    "bodies": lambda number: chain([HEAD + b"Content-Length: 268435456\r\n\r\n"], repeat(BODY)),
    "a wrong secret": lambda number: repeat(
        HEAD + b"Authorization: Bearer %032x\r\nContent-Length: 0\r\n\r\n" % number
    ),
    "requests without a secret": lambda number: repeat(b"GET /screenshot HTTP/1.1\r\nHost: desktop\r\n\r\n"),
    "half of a head": lambda number: chain([HEAD, None], repeat(b"")),
    "a handshake of TLS": lambda number: chain(
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)], repeat(b"")
    ),
    "lines without a carriage return": lambda number: chain([b"GET / HTTP/1.1\nHost: desktop\n\n"], repeat(b"\n")),
    "heads of odd bytes": lambda number: repeat(
        b"\r\n\r\n\xff\xfe \x00 Authorization:\r\nAuthorization: Bearer \xff\r\n: \r\n\r\n"
    ),
    "one byte, and an end by a reset": lambda number: iter([b"G"]),
    "nothing": lambda number: iter(()),
}
"""What a connection of this number says, one word after the other: None ends what it says, and an end closes it."""


@contextmanager
def flood(address, kind):
    """Keep many connections of a kind open, each anew when it is closed, until the block ends."""
    stop, full = threading.Event(), threading.Event()
    flooder = threading.Thread(target=_pour, args=(address, kind, stop, full), daemon=True)
    flooder.start()
    try:
        assert full.wait(60)
        yield
    finally:
        stop.set()
        flooder.join()


def _pour(address, kind, stop, full):
    numbers, held = count(), {}
    with ExitStack() as open_sockets:
        while not stop.is_set():
            while len(held) < CONNECTIONS and not stop.is_set():
                connection = open_sockets.enter_context(closing(socket.socket()))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.setblocking(False)
                connection.connect_ex(address)
                held[connection] = FLOODS[kind](next(numbers))
            for connection, words in list(held.items()):
                if not _say(connection, words):
                    connection.close()
                    del held[connection]
            full.set()
            stop.wait(PAUSE_S)


def _say(connection, words):
    """Send the next words of a connection; return whether it is still open."""
    try:
        connection.getpeername()
        word = next(words)
        if word is None:
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.send(word)
        while connection.recv(65536):
            pass
    except BlockingIOError:  # it takes no more for now, or has not answered
        return True
    except StopIteration:
        return False
    except OSError as error:  # it is still being made, or was refused or closed
        return error.errno == errno.ENOTCONN and not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return False
