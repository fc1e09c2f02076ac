"""A server that lies in every way that we know of, and what each lie costs the client.

`python -m tests.envs.guest.hostile 0.5` gives one line of JSON a lie, for calls with a deadline of 0.5 s. A process of
its own meets each, forked when everything is imported: the most memory that it ever had, less what it had before the
call, is the price.
"""

import ctypes
import gzip
import json
import operator
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
from dataclasses import dataclass
from pathlib import Path

from arpo.envs.answers import decoded
from arpo.envs.guest.client import Deadlines, Guest
from arpo.envs.miniwob.chromium import Browser, ChromiumError
from arpo.envs.miniwob.tab import _Answer
from arpo.envs.osworld import chrome
from arpo.envs.screenshot import check_screenshot, measured, most_bytes
from arpo.errors import EnvError
from arpo.types import Observation

SCREEN = (1280, 720)
PAUSE_S = 0.05  # between two bytes of an answer that drips: every read succeeds, long before any timeout of its own
FLOOD = bytes(2**16)

Lie = Callable[[socket.socket], object]


@dataclass(frozen=True)
class Attack:
    """A lie, the call that meets it, and whether the call may take the answer for one."""

    what: str
    call: Callable[[str, float], object]
    lie: Lie | str  # what a server does with a connection; or what a browser does, in Python
    is_answer: bool = False


def asks(question: Callable[[Guest], object]) -> Callable[[str, float], object]:
    return lambda address, limit_s: question(Guest(address, deadlines=Deadlines(call_s=limit_s, program_s=limit_s)))


@asks
def screenshot(guest: Guest) -> None:
    check_screenshot(Observation(guest.screenshot(most_bytes=most_bytes(*SCREEN)), *SCREEN))


@asks
def screenshot_of_any_size(guest: Guest) -> None:
    """As OSWorld's environment does, whose guest says how large its screen is."""
    png = guest.screenshot()
    check_screenshot(Observation(png, *measured(png)))


health, titles = asks(Guest.check_health), asks(Guest.titles)
execute, file = asks(lambda guest: guest.execute("true")), asks(lambda guest: guest.file("~/a"))
upload = asks(lambda guest: guest.upload("~/a", bytes(12 * 2**20)))


def chrome_tabs(question: Callable[[chrome.ChromeTabs], object]) -> Callable[[str, float], object]:
    def ask(address: str, limit_s: float) -> None:
        chrome.CALL_TIMEOUT_S = limit_s
        question(chrome.ChromeTabs(address, start_timeout_s=0, load_timeout_s=limit_s))

    return ask


tabs, new_tab = (chrome_tabs(operator.methodcaller(name, ["https://a.org"])) for name in ("close", "open"))


def ask_browser(script: str, limit_s: float) -> None:
    browser = Browser(script)
    try:
        decoded(browser.call("Runtime.evaluate", timeout_s=limit_s), _Answer, "Runtime.evaluate")
    except ChromiumError as error:
        raise EnvError("step", str(error)) from error  # as `env_boundary` does for an environment
    finally:
        browser.kill("the test is over")


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def sends(data: bytes) -> Lie:
    return lambda peer: peer.sendall(data)


def says(body: bytes, *lines: str, status: str = "200 OK") -> Lie:
    return sends(head(f"Content-Length: {len(body)}", *lines, status=status) + body)


def repeats(start: bytes, piece: bytes, pause_s: float) -> Lie:
    def repeat(peer: socket.socket) -> None:
        peer.sendall(start)
        while True:
            peer.sendall(piece)
            time.sleep(pause_s)

    return repeat


def drips(start: bytes, piece: bytes) -> Lie:
    return repeats(start, piece, PAUSE_S)


def floods(start: bytes, piece: bytes) -> Lie:
    return repeats(start, piece * max(1, 2**16 // len(piece)), 0.0)


def silent(peer: socket.socket) -> None:
    time.sleep(60)


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def png(size: tuple[int, int], *, before: bytes = b"", pixels: bytes | None = None) -> bytes:
    width, height = size
    rows = bytes((3 * width + 1) * height) if pixels is None else pixels
    header = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 2, 0, 0, 0])
    parts = [chunk(b"IHDR", header), before, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


TEXT_BOMB = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(2**26), 9))
PROFILE_BOMB = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(2**26), 9))
GIGABYTE_GZIPPED_TWICE = gzip.compress(gzip.compress(bytes(2**20), 9) * 1024, 9)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = head("Transfer-Encoding: chunked")
OF_A_GIGABYTE = head(f"Content-Length: {2**30}")
WITHOUT_LENGTH = head("Connection: close")
DEEP = b"[" * 100_000
LONG_TEXT = b"a" * (2**22 - 40) + "😀".encode()


def many(record: bytes, size: int) -> bytes:
    return b"[" + b",".join([record] * (size // (len(record) + 1))) + b"]"


SERVERS: tuple[Attack, ...] = (
    Attack("silence", screenshot, silent),
    Attack("a connection that ends at once", screenshot, lambda peer: None),
    Attack("bytes that are no HTTP", screenshot, sends(b"SSH-2.0-liar\r\n\r\n")),
    Attack("headers that drip", screenshot, drips(OK, b"X: y\r\n")),
    Attack("endless headers", screenshot, floods(OK, b"X: y\r\n")),
    Attack("one endless header", screenshot, floods(OK + b"X: ", b"y")),
    Attack("endless answers of 1xx", screenshot, floods(b"", head(status="103 Early Hints"))),
    Attack("another protocol, and a flood in it", screenshot, floods(head(status="101 Switching Protocols"), FLOOD)),
    Attack("a redirection to itself", screenshot, says(b"", "Location: /screenshot", status="302 Found")),
    Attack("two lengths", screenshot, sends(head("Content-Length: 1", "Content-Length: 2") + b"ab")),
    Attack("a body that drips", screenshot, drips(OF_A_GIGABYTE, b"x")),
    Attack("a body that is cut", screenshot, sends(head("Content-Length: 9") + b"x")),
    Attack("a body of 1 GB", screenshot, floods(OF_A_GIGABYTE, FLOOD)),
    Attack("an endless body", screenshot, floods(WITHOUT_LENGTH, FLOOD)),
    Attack("endless chunks of one byte", screenshot, floods(CHUNKED, b"1\r\nx\r\n")),
    Attack("a chunk with an endless extension", screenshot, floods(CHUNKED + b"1;", b"x")),
    Attack("a chunk of 2^64 bytes", screenshot, floods(CHUNKED + b"ffffffffffffffff\r\n", FLOOD)),
    Attack("endless trailers", screenshot, floods(CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n")),
    Attack("an endless error", health, floods(head("Connection: close", status="500 Oh"), FLOOD)),
    Attack("a gigabyte, gzipped twice", screenshot, says(GIGABYTE_GZIPPED_TWICE, "Content-Encoding: gzip, gzip")),
    Attack("brotli", titles, says(b"[]", "Content-Encoding: br")),
    Attack("an upload that nobody reads", upload, silent),
    Attack("a file of 1 GB", file, floods(OF_A_GIGABYTE, FLOOD)),
    Attack("an endless 404", file, floods(head("Connection: close", status="404 Not Found"), FLOOD)),
    Attack("a picture of 30000x30000", screenshot_of_any_size, says(png((30_000, 30_000), pixels=b""))),
    Attack("a picture of 3840x2160", screenshot_of_any_size, says(png((3840, 2160))), is_answer=True),
    Attack("64 MiB of text, packed, before the pixels", screenshot, says(png(SCREEN, before=TEXT_BOMB))),
    Attack("a packed colour profile of 64 MiB", screenshot, says(png(SCREEN, before=PROFILE_BOMB)), is_answer=True),
    Attack("JSON of 17 MiB", titles, says(many(b'{"title":"a"}', 17 * 2**20))),
    Attack("as many windows as fit", titles, says(many(b'{"title":""}', 2**20 - 20)), is_answer=True),
    Attack("null in place of windows", titles, says(b"null")),
    Attack("a title that is a number", titles, says(b'[{"title": 1}]')),
    Attack("lists, 100000 deep", titles, says(DEEP)),
    Attack("100000 lists in a field that nobody reads", execute, says(b'{"output": "", "a": ' + DEEP)),
    Attack("an output that is missing", execute, says(b"{}")),
    Attack("a return code of 5000 digits", execute, says(b'{"output": "", "returncode": 1' + b"0" * 5000 + b"}")),
    Attack("text that is no UTF-8", execute, says(b'{"output": "\xff"}')),
    Attack("4 MiB of text", execute, says(b'{"output": "' + LONG_TEXT + b'"}'), is_answer=True),
    Attack("DevTools: endless tabs", tabs, floods(CHUNKED, b"10000\r\n" + b" " * 2**16 + b"\r\n")),
    Attack("DevTools: as many tabs as fit", tabs, says(many(b'{"id":""}', 2**20 - 20)), is_answer=True),
    Attack("DevTools: an address that is a number", tabs, says(b'[{"id": "1", "type": "page", "url": 7}]')),
    Attack("DevTools: a new tab without a name", new_tab, says(b"[]")),
)

# lies of a browser: it answers the first command, and lies on the next one

BROWSER = f"""#!{sys.executable}
import json, os, time
def say(data):
    while data:
        data = data[os.write(4, data):]
def hear():
    buffer = b""
    while b"\\0" not in buffer:
        buffer += os.read(3, 65536)
    return json.loads(buffer[:-1])["id"]
say(json.dumps(dict(id=hear(), result=dict(product="Liar/1"))).encode() + b"\\0")
number = hear()
"""
BROWSERS: tuple[Attack, ...] = tuple(
    Attack(f"a browser: {what}", ask_browser, lie)
    for what, lie in {
        "a number": "say(b'7\\0')",
        "lists, 100000 deep": "say(b'[' * 100000 + b'\\0')",
        "an answer that is a list": 'say(b\'{"id": %d, "result": []}\\0\' % number)',
        "an answer without a result": "say(b'{\"id\": %d}\\0' % number)",
        "an endless message": "while True: say(bytes([120]) * 65536)",
        "a message that drips": "while True: say(b'x'); time.sleep(0.05)",
        "endless events": 'while True: say(b\'{"method": "a", "params": {}}\\0\' * 2000)',
        "an end": "raise SystemExit",
    }.items()
)
ATTACKS = (*SERVERS, *BROWSERS)


def serve(listener: socket.socket, lie: Lie) -> None:
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
            path.write_text(f"{BROWSER}{lie}\ntime.sleep(60)\n")
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


def meet(attack: Attack, address: str, deadline_s: float) -> None:
    """Make the call in this process, and say what it cost: the error that it became, and how much time and memory."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free and not given back would hide what the call takes
    Path("/proc/self/clear_refs").write_text("5")
    before, began = memory("VmRSS"), time.monotonic()
    try:
        result = f"an answer: {type(attack.call(address, deadline_s)).__name__}"
    except EnvError as error:
        result = f"EnvError: {error}"
    except BaseException as error:  # noqa: BLE001 - what a caller would meet
        result = f"{type(error).__name__}: {error}"
    price = {"seconds": time.monotonic() - began, "mebibytes": memory("VmHWM") - before}
    sys.stdout.write(json.dumps({"what": attack.what, "result": result, **price}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for each in ATTACKS:
        with address_of(each.lie) as place:
            os.waitpid(forked(lambda: meet(each, place, float(sys.argv[1]))), 0)  # noqa: B023 - it is called at once
