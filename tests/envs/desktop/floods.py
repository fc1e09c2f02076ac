"""Floods from outside: whoever reaches the port of a desktop and does not know its secret."""

import errno
import itertools
import socket
import struct
import threading
from contextlib import ExitStack, closing, contextmanager

CONNECTIONS = 700
"""More than a desktop may have processes, and threads."""
PAUSE_S = 0.1
"""Between two rounds of a flood that goes on: it is to be wide, and this machine is the victim's too."""
HEAD = b"POST /setup/upload HTTP/1.1\r\nHost: desktop\r\n"
BODY = b"a" * 65536


def silence(number):
    """Nothing, ever."""
    return itertools.repeat(b"")


def headers_that_drip(number):
    return itertools.chain([HEAD + b"X-"], itertools.repeat(b"a"))


def headers_without_end(number):
    return itertools.chain([HEAD], (b"X-%d: a\r\n" % line for line in itertools.count()))


def one_header_without_end(number):
    return itertools.chain([HEAD + b"X: "], itertools.repeat(BODY))


def bodies(number):
    return itertools.chain([HEAD + b"Content-Length: 268435456\r\n\r\n"], itertools.repeat(BODY))


def a_wrong_secret(number):
    return itertools.repeat(HEAD + b"Authorization: Bearer %032x\r\nContent-Length: 0\r\n\r\n" % number)


def requests_without_a_secret(number):
    return itertools.repeat(b"GET /screenshot HTTP/1.1\r\nHost: desktop\r\n\r\n")


def half_of_a_head(number):
    return itertools.chain([HEAD, None], itertools.repeat(b""))


def a_handshake_of_tls(number):
    return itertools.chain([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)], itertools.repeat(b""))


def lines_without_a_carriage_return(number):
    return itertools.chain([b"GET / HTTP/1.1\nHost: desktop\n\n"], itertools.repeat(b"\n"))


def heads_of_odd_bytes(number):
    return itertools.repeat(b"\r\n\r\n\xff\xfe \x00 Authorization:\r\nAuthorization: Bearer \xff\r\n: \r\n\r\n")


def one_byte(number):
    """A byte, and an end by a reset."""
    return iter([b"G"])


def nothing(number):
    """A connection that is closed at once."""
    return iter(())


FLOODS = (
    silence,
    headers_that_drip,
    headers_without_end,
    one_header_without_end,
    bodies,
    a_wrong_secret,
    requests_without_a_secret,
    half_of_a_head,
    a_handshake_of_tls,
    lines_without_a_carriage_return,
    heads_of_odd_bytes,
    one_byte,
    nothing,
)


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
    numbers, held = itertools.count(), {}
    with ExitStack() as open_sockets:
        while not stop.is_set():
            while len(held) < CONNECTIONS and not stop.is_set():
                connection = open_sockets.enter_context(closing(socket.socket()))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.setblocking(False)
                connection.connect_ex(address)
                held[connection] = kind(next(numbers))
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
