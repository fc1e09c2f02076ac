"""The guest server: OSWorld's HTTP routes on port 5000, and faster ways to do the same.

It is an OSWorld guest that any OSWorld client can drive, unless its standard input holds a secret: then every
request must carry `Authorization: Bearer <secret>`. In the environment, every program of the user could read it.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler
from socket import socket
from urllib.parse import parse_qs, urlsplit

import door
import tunnel
import walls
from display import StartError
from routes import Answer, Guest

PORT = 5000
TUNNEL = "/tunnel/"
LARGEST_BODY = 256 * 2**20
IDLE_LIMIT_S = 60.0
"""Between two bytes of a client, and between two requests of a connection."""


class Handler(BaseHTTPRequestHandler):
    """One connection; keep-alive, because a new one for each screenshot costs as much as the screenshot."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = IDLE_LIMIT_S
    guest: Guest
    secret = ""

    def do_GET(self) -> None:
        """Answer a request without a body, or make the connection one to a program of the desktop."""
        if self.path.startswith(TUNNEL) and door.shows(self.secret, self.headers):
            self._tunnel(self.path.removeprefix(TUNNEL))
        else:
            self._answer()

    def do_POST(self) -> None:
        """Answer a request with a body."""
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the client knows what it asked."""

    def _answer(self) -> None:
        refusal = self._refusal()
        self.close_connection = self.close_connection or refusal is not None  # a body that is not read is in the way
        answer = refusal or self._answer_of_guest()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    def _tunnel(self, program: str) -> None:
        self.close_connection = True
        with ExitStack() as stack:
            try:
                other = stack.enter_context(tunnel.connected(program))
            except (tunnel.NotItselfError, KeyError, OSError) as error:
                self.send_error(404, str(error)[:200])
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            self.connection.settimeout(None)
            tunnel.pump(self.connection, other)

    def _refusal(self) -> Answer | None:
        """Look at the head of a request alone: a body takes memory."""
        if not door.shows(self.secret, self.headers):  # a connection may change what it shows
            return Answer.error(401, door.NO_SECRET)
        length = self.headers.get("Content-Length", "0")
        if not (length.isdecimal() and int(length) <= LARGEST_BODY):
            return Answer.error(413, f"a body must have 0 to {LARGEST_BODY} bytes, not {length!r}")
        return None

    def _answer_of_guest(self) -> Answer:
        address = urlsplit(self.path)
        try:
            parameters = {**_first_values(address.query), **self._body()}
            return self.guest.answer(self.command, address.path, parameters)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the answer
            traceback.print_exc()
            return Answer.error(500, f"{type(error).__name__}: {error}")

    def _body(self) -> Mapping[str, object]:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        content_type = self.headers.get("Content-Type", "")
        if not raw:
            return {}
        if "json" in content_type:
            return json.loads(raw)
        if "multipart" in content_type:
            return _parts(content_type, raw)
        return _first_values(raw.decode())


def _first_values(query: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(query).items()}


def _parts(content_type: str, raw: bytes) -> dict[str, object]:
    """Return the fields of a form: files as bytes, everything else as text."""
    message = BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw)
    fields: dict[str, object] = {}
    for part in message.get_payload():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        fields[name] = content if part.get_filename() else content.decode()
    return fields


class Server:
    """A thread for each connection that the door lets in, whatever the programs of the desktop do."""

    def __init__(self, secret: str, guest: Guest) -> None:
        Handler.secret, Handler.guest = secret, guest
        self._guest = guest
        self._door = door.Door(PORT, secret, self._begin)

    def serve(self) -> None:
        """Serve for ever."""
        self._door.watch()

    def _begin(self, connection: socket, address: door.Address) -> None:
        """Start a thread; where programs have taken every process that there may be, end them first."""
        for _ in range(2):
            with suppress(RuntimeError):
                threading.Thread(target=self._serve_one, args=(connection, address), daemon=True).start()
                return
            self._guest.give_up("it had as many processes as it may have")
        self._door.leave(connection)

    def _serve_one(self, connection: socket, address: door.Address) -> None:
        try:
            with suppress(OSError):  # the client is gone, or says nothing more
                Handler(connection, address, self)
        finally:
            self._door.leave(connection)


def main() -> int:
    """Bring the desktop up, then serve it for ever; the exit status."""
    walls.close_memory()
    walls.close_calls()
    secret = sys.stdin.readline().strip()
    try:
        guest = Guest(os.environ.get("ARPO_SCREEN", "1280x720x24"))
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    Server(secret, guest).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
