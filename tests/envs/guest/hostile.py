"""A server that lies in every way that we know of, and what each lie costs the client.

`python -m tests.envs.guest.hostile 0.5` gives one line of JSON a lie, for calls with a deadline of 0.5 s; a name after
the deadline gives that one. Each is met by a process of its own, which is forked when everything is imported: the most
memory that it ever had, less what it had before the call, is the price.
"""

import ctypes
import gzip
import itertools
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from arpo.envs.answers import decoded
from arpo.envs.guest.client import Guest
from arpo.envs.guest.deadlines import Deadlines
from arpo.envs.miniwob.chromium import Browser, ChromiumError
from arpo.envs.miniwob.tab import _Evaluated
from arpo.envs.osworld import chrome
from arpo.envs.screenshot import check_screenshot, measured, most_bytes
from arpo.errors import EnvError
from arpo.types import Observation

SCREEN = (1280, 720)
PAUSE_S = 0.05
"""Between two bytes of an answer that drips: every read succeeds, long before any timeout of its own."""
FLOOD = bytes(2**16)

Lie = Callable[[socket.socket], object]
Call = Callable[[str, float], object]


@dataclass(frozen=True)
class Attack:
    """A lie, the call that meets it, and whether the call may take the answer for one."""

    what: str
    call: Call
    lie: Lie | str
    """What a server does with a connection; or what a browser does, in Python."""
    is_answer: bool = False


@dataclass(frozen=True)
class Price:
    """What a lie cost: the error it became, and how much time and memory."""

    what: str
    result: str
    seconds: float
    mebibytes: float
    is_answer: bool
    """Whether the call may take the answer for one."""


# calls


def impatient(address: str, deadline_s: float) -> Guest:
    """A client that waits so long for whatever it asks."""
    return Guest(address, deadlines=Deadlines(call_s=deadline_s, program_s=deadline_s))


def screenshot(address: str, deadline_s: float) -> object:
    png = impatient(address, deadline_s).screenshot(most_bytes=most_bytes(*SCREEN))
    check_screenshot(Observation(png, *SCREEN))
    return f"a screenshot of {len(png)} bytes"


def screenshot_of_any_size(address: str, deadline_s: float) -> object:
    """As OSWorld's environment does, whose guest says how large its screen is."""
    png = impatient(address, deadline_s).screenshot()
    observation = Observation(png, *measured(png))
    check_screenshot(observation)
    return f"a screenshot of {observation.width}x{observation.height}"


def health(address: str, deadline_s: float) -> object:
    return impatient(address, deadline_s).check_health()


def titles(address: str, deadline_s: float) -> object:
    return f"{len(impatient(address, deadline_s).titles())} titles"


def execute(address: str, deadline_s: float) -> object:
    return f"{len(impatient(address, deadline_s).execute('true').output)} characters"


def play(address: str, deadline_s: float) -> object:
    return impatient(address, deadline_s).play([("move", 1, 2)])


def file(address: str, deadline_s: float) -> object:
    content = impatient(address, deadline_s).file("~/a")
    return "no file" if content is None else f"{len(content)} bytes"


def upload(address: str, deadline_s: float) -> object:
    return impatient(address, deadline_s).upload("~/a", bytes(12 * 2**20))


def tabs(address: str, deadline_s: float) -> object:
    chrome.CALL_TIMEOUT_S = deadline_s
    return chrome.ChromeTabs(address, start_timeout_s=0).close(["https://a.org"])


def new_tab(address: str, deadline_s: float) -> object:
    chrome.CALL_TIMEOUT_S = deadline_s
    return chrome.ChromeTabs(address, start_timeout_s=0, load_timeout_s=deadline_s).open(["https://a.org"])


# lies of a server


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def says(body: bytes, *lines: str, status: str = "200 OK") -> Lie:
    """An answer that is whole."""
    return lambda peer: peer.sendall(head(f"Content-Length: {len(body)}", *lines, status=status) + body)


def drips(start: bytes, piece: bytes) -> Lie:
    """A start, and then a piece now and then, for ever."""

    def drip(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(piece)
            time.sleep(PAUSE_S)

    return drip


def drips_each(data: bytes) -> Lie:
    """Something whole, one byte at a time."""

    def drip(peer: socket.socket) -> None:
        for byte in itertools.cycle(data):
            peer.sendall(bytes([byte]))
            time.sleep(PAUSE_S)

    return drip


def floods(start: bytes, piece: bytes) -> Lie:
    """A start, and then a piece after the other, as fast as they are taken."""
    pieces = piece * max(1, 2**16 // len(piece))

    def flood(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(pieces)

    return flood


def silent(peer: socket.socket) -> None:
    time.sleep(60)


def starts_and_stops(start: bytes) -> Lie:
    def stop(peer: socket.socket) -> None:
        peer.sendall(start)
        time.sleep(60)

    return stop


def sends_and_ends(data: bytes) -> Lie:
    return lambda peer: peer.sendall(data)


# pictures


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def png(size: tuple[int, int], *, before: bytes = b"", after: bytes = b"", pixels: bytes | None = None) -> bytes:
    """A PNG of RGB pixels that are all black, with chunks of ours before and after them."""
    width, height = size
    rows = bytes((3 * width + 1) * height) if pixels is None else pixels
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    parts = [chunk(b"IHDR", header), before, chunk(b"IDAT", zlib.compress(rows)), after, chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def beside_a_picture(peer: socket.socket) -> None:
    """A PNG with a chunk of 200 MB that nobody reads."""
    picture = png(SCREEN)
    peer.sendall(head(f"Content-Length: {2 * 10**8 + len(picture) + 12}") + picture[:-12])
    peer.sendall((2 * 10**8).to_bytes(4) + b"teSt")
    while True:
        peer.sendall(FLOOD)


def bitmap(side: int) -> bytes:
    """A PNG of so many black pixels in both directions, one bit each: Pillow takes a byte for each."""
    header = side.to_bytes(4) * 2 + bytes([1, 0, 0, 0, 0])
    pixels = zlib.compress(bytes((side // 8 + 1) * side))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


PACKED_MEBIBYTE = zlib.compress(bytes(2**20), 9)
TEXT_BOMB = chunk(b"zTXt", b"a\0\0" + PACKED_MEBIBYTE)
LARGER_TEXT_BOMB = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**26), 9))
PROFILE_BOMB = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**26), 9))
GIF = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff!\xf9\x04\0\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;"


GIGABYTE_GZIPPED_TWICE = gzip.compress(gzip.compress(bytes(2**20), 9) * 1024, 9)


CHUNKED = head("Transfer-Encoding: chunked")
OF_A_GIGABYTE = head(f"Content-Length: {2**30}")
WITHOUT_LENGTH = head("Connection: close")
DEEP = b"[" * 100_000


def many(record: bytes, size: int) -> bytes:
    """A list of records with about so many bytes."""
    return b"[" + b",".join([record] * (size // (len(record) + 1))) + b"]"


LONG_TEXT = b'{"output": "' + b"a" * (2**22 - 40) + "😀".encode() + b'"}'

SERVERS: tuple[Attack, ...] = (
    Attack("silence", screenshot, silent),
    Attack("a connection that ends at once", screenshot, lambda peer: None),
    Attack("bytes that are no HTTP", screenshot, sends_and_ends(b"SSH-2.0-liar\r\n\r\n")),
    Attack("a status line that drips", screenshot, drips_each(head())),
    Attack("headers that drip", screenshot, drips(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")),
    Attack("one header that drips", screenshot, drips(b"HTTP/1.1 200 OK\r\nX: ", b"y")),
    Attack("endless headers", screenshot, floods(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n")),
    Attack("one endless header", screenshot, floods(b"HTTP/1.1 200 OK\r\nX: ", b"y")),
    Attack("endless answers of 1xx", screenshot, floods(b"", head(status="103 Early Hints"))),
    Attack("answers of 1xx that drip", screenshot, drips(b"", head(status="100 Continue"))),
    Attack("another protocol, and a flood in it", screenshot, floods(head(status="101 Switching Protocols"), FLOOD)),
    Attack("a redirection to itself", screenshot, says(b"", "Location: /screenshot", status="302 Found")),
    Attack("a length that is no number", screenshot, sends_and_ends(head("Content-Length: -1"))),
    Attack("two lengths", screenshot, sends_and_ends(head("Content-Length: 1", "Content-Length: 2") + b"ab")),
    Attack("a body that drips", screenshot, drips(OF_A_GIGABYTE, b"x")),
    Attack("a body that is cut", screenshot, sends_and_ends(head("Content-Length: 9") + b"x")),
    Attack("a body that stops", screenshot, starts_and_stops(OF_A_GIGABYTE + b"x")),
    Attack("a body of 1 GB", screenshot, floods(OF_A_GIGABYTE, FLOOD)),
    Attack("an endless body", screenshot, floods(WITHOUT_LENGTH, FLOOD)),
    Attack("endless chunks", screenshot, floods(CHUNKED, b"10000\r\n" + FLOOD + b"\r\n")),
    Attack("endless chunks of one byte", screenshot, floods(CHUNKED, b"1\r\nx\r\n")),
    Attack("chunks that drip", screenshot, drips(CHUNKED, b"1\r\nx\r\n")),
    Attack("a chunk with an endless extension", screenshot, floods(CHUNKED + b"1;", b"x")),
    Attack("a chunk of 2^64 bytes", screenshot, floods(CHUNKED + b"ffffffffffffffff\r\n", FLOOD)),
    Attack("endless trailers", screenshot, floods(CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n")),
    Attack("an endless error", health, floods(head("Connection: close", status="500 Oh"), FLOOD)),
    Attack("a gigabyte, gzipped twice", screenshot, says(GIGABYTE_GZIPPED_TWICE, "Content-Encoding: gzip, gzip")),
    Attack("a picture, gzipped", screenshot, says(gzip.compress(png(SCREEN)), "Content-Encoding: gzip")),
    Attack("brotli", titles, says(b"[]", "Content-Encoding: br")),
    Attack("gzip as a transfer encoding", titles, sends_and_ends(head("Transfer-Encoding: gzip, chunked"))),
    Attack("an answer to an action that drips", play, drips(OF_A_GIGABYTE, b"x")),
    Attack("an upload that nobody reads", upload, silent),
    Attack("a file of 1 GB", file, floods(OF_A_GIGABYTE, FLOOD)),
    Attack("a file that drips", file, drips(OF_A_GIGABYTE, b"x")),
    Attack("an endless 404", file, floods(head("Connection: close", status="404 Not Found"), FLOOD)),
    Attack("a picture of no bytes", screenshot, says(b"")),
    Attack("a GIF", screenshot, says(GIF)),
    Attack("a picture of another size", screenshot, says(png((640, 480)))),
    Attack("a picture of 30000x30000", screenshot_of_any_size, says(png((30_000, 30_000), pixels=b""))),
    Attack("a picture of 13000x13000", screenshot_of_any_size, says(bitmap(13_000))),
    Attack("a picture of 3840x2160", screenshot_of_any_size, says(png((3840, 2160))), is_answer=True),
    Attack("half of the pixels", screenshot, says(png(SCREEN, pixels=bytes(3 * 1280 * 360)))),
    Attack("64 MiB of text, packed, before the pixels", screenshot, says(png(SCREEN, before=LARGER_TEXT_BOMB))),
    Attack("64 x 1 MiB of text before the pixels", screenshot, says(png(SCREEN, before=TEXT_BOMB * 64))),
    Attack("64 x 1 MiB of text behind the pixels", screenshot, says(png(SCREEN, after=TEXT_BOMB * 64))),
    Attack("a packed colour profile of 64 MiB", screenshot, says(png(SCREEN, before=PROFILE_BOMB)), is_answer=True),
    Attack("a picture with 200 MB beside it", screenshot, beside_a_picture),
    Attack("no JSON", titles, says(b"<html>")),
    Attack("JSON of 17 MiB", titles, says(many(b'{"title":"a"}', 17 * 2**20))),
    Attack("as many windows as fit", titles, says(many(b'{"title":""}', 2**20 - 20)), is_answer=True),
    Attack("null in place of windows", titles, says(b"null")),
    Attack("numbers in place of windows", titles, says(b"[1, 2]")),
    Attack("a title that is a number", titles, says(b'[{"title": 1}]')),
    Attack("lists, 100000 deep", titles, says(DEEP)),
    Attack("100000 lists in a field that nobody reads", execute, says(b'{"output": "", "a": ' + DEEP)),
    Attack("an output that is missing", execute, says(b"{}")),
    Attack("an output that is a list", execute, says(b'{"output": ["a"]}')),
    Attack("a return code that is a word", execute, says(b'{"output": "", "returncode": "0"}')),
    Attack("a return code of 5000 digits", execute, says(b'{"output": "", "returncode": 1' + b"0" * 5000 + b"}")),
    Attack("text that is no UTF-8", execute, says(b'{"output": "\xff"}')),
    Attack("half of a surrogate pair", execute, says(b'{"output": "\\ud800"}')),
    Attack(
        "4 MiB of text with an emoji",
        execute,
        says(b'{"output": "' + b"a" * (2**22 - 40) + "😀".encode() + b'"}'),
        True,
    ),
    Attack("DevTools: tabs that drip", tabs, drips(OF_A_GIGABYTE, b" ")),
    Attack("DevTools: endless tabs", tabs, floods(CHUNKED, b"10000\r\n" + b" " * 2**16 + b"\r\n")),
    Attack("DevTools: as many tabs as fit", tabs, says(many(b'{"id":""}', 2**20 - 20)), is_answer=True),
    Attack("DevTools: a word in place of tabs", tabs, says(b'"tabs"')),
    Attack("DevTools: an address that is a number", tabs, says(b'[{"id": "1", "type": "page", "url": 7}]')),
    Attack("DevTools: a new tab without a name", new_tab, says(b"[]")),
)

# lies of a browser: it answers the first command, and lies on the next one


def ask_browser(script: str, deadline_s: float) -> object:
    browser = Browser(script)
    try:
        answer = browser.call("Runtime.evaluate", timeout_s=deadline_s)
        return decoded(answer, _Evaluated, "Runtime.evaluate")
    except ChromiumError as error:
        raise EnvError("step", str(error)) from error  # as `env_boundary` does for an environment
    finally:
        browser.kill("the test is over")


def speaks(lie: str) -> str:
    return f"""#!{sys.executable}
import itertools, json, os, time
def say(data):
    while data:
        data = data[os.write(4, data):]
buffer = b""
while b"\\0" not in buffer:
    buffer += os.read(3, 65536)
number = json.loads(buffer[:-1])["id"]
say(json.dumps(dict(id=number, result=dict(product="Liar/1"))).encode() + b"\\0")
buffer = b""
while b"\\0" not in buffer:
    buffer += os.read(3, 65536)
number = json.loads(buffer[:-1])["id"]
{lie}
time.sleep(60)
"""


BROWSERS: tuple[Attack, ...] = tuple(
    Attack(f"a browser: {what}", ask_browser, lie)
    for what, lie in {
        "silence": "",
        "no JSON": "say(b'<html>\\0')",
        "a number": "say(b'7\\0')",
        "lists, 100000 deep": "say(b'[' * 100000 + b'\\0')",
        "100000 lists in its answer": "say(b'{\"id\": %d, \"result\": ' % number + b'[' * 100000 + b'\\0')",
        "a number that is a word": 'say(b\'{"id": "one", "result": {}}\\0\')',
        "an answer that is a list": 'say(b\'{"id": %d, "result": []}\\0\' % number)',
        "an answer without a result": "say(b'{\"id\": %d}\\0' % number)",
        "an endless message": "while True: say(bytes([120]) * 65536)",
        "a message that drips": "while True: say(b'x'); time.sleep(0.05)",
        "endless events": 'while True: say(b\'{"method": "a", "params": {}}\\0\' * 2000)',
        "an end": "raise SystemExit",
    }.items()
)
ATTACKS = (*SERVERS, *BROWSERS)


# what it costs


def serve(listener: socket.socket, lie: Lie) -> None:
    """Do the same with every connection, one after the other."""
    while True:
        peer, _ = listener.accept()
        with peer, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += peer.recv(1)
            length = int(next(iter(re.findall(rb"content-length: (\d+)", request.lower())), 0))
            if length < 2**16:  # or the connection would be reset
                peer.recv(length, socket.MSG_WAITALL)
            lie(peer)
            peer.shutdown(socket.SHUT_WR)


@contextmanager
def address_of(lie: Lie | str) -> Iterator[str]:
    """The address of a server, or the path of a browser, that tells this lie."""
    if isinstance(lie, str):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "browser"
            path.write_text(speaks(lie))
            path.chmod(0o755)
            yield str(path)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = forked(lambda: serve(listener, lie))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)


def forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


def memory(field: str) -> float:
    """MiB of this process: `VmRSS` now, `VmHWM` at most since it was reset."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def meet(attack: Attack, address: str, deadline_s: float) -> Price:
    """Make the call in this process."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free and not given back would hide what the call takes
    Path("/proc/self/clear_refs").write_text("5")
    before, began = memory("VmRSS"), time.monotonic()
    try:
        result = str(attack.call(address, deadline_s))
    except EnvError as error:
        result = f"EnvError: {error}"
    except BaseException as error:  # noqa: BLE001 - what a caller would meet
        result = f"{type(error).__name__}: {error}"
    return Price(attack.what, result, time.monotonic() - began, memory("VmHWM") - before, attack.is_answer)


def price_of(attack: Attack, deadline_s: float) -> Price:
    """Make the call in a process of its own."""
    with address_of(attack.lie) as address:
        reader, writer = os.pipe()
        client = forked(lambda: os.write(writer, json.dumps(asdict(meet(attack, address, deadline_s))).encode()))
        os.waitpid(client, 0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            return Price(**json.loads(answer.read()))


if __name__ == "__main__":
    for each in ATTACKS if len(sys.argv) == 2 else [each for each in ATTACKS if each.what == sys.argv[2]]:
        sys.stdout.write(json.dumps(asdict(price_of(each, float(sys.argv[1])))) + "\n")
        sys.stdout.flush()
