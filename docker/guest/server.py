"""The guest server: OSWorld's HTTP routes on port 5000, and faster ways to do the same.

It is an OSWorld guest that any OSWorld client can drive, unless its standard input holds a secret: then every
request must carry `Authorization: Bearer <secret>`. In the environment, every program of the user could read it.
"""

import hmac
import json
import os
import sys
import traceback
from collections.abc import Mapping
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from urllib.parse import parse_qs, urlsplit

import walls
from display import StartError
from routes import Answer, Guest

PORT = 5000
LARGEST_BODY = 256 * 2**20


class Handler(BaseHTTPRequestHandler):
    """One connection; keep-alive, because a new one for each screenshot costs as much as the screenshot."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    guest: Guest
    secret = ""

    def do_GET(self) -> None:
        """Answer a request without a body."""
        self._answer()

    def do_POST(self) -> None:
        """Answer a request with a body."""
        self._answer()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing: the client knows what it asked."""

    def _answer(self) -> None:
        refusal = self._refusal()
        self.close_connection = self.close_connection or refusal is not None  # a body that nobody reads is in the way
        answer = refusal or self._answer_of_guest()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    def _refusal(self) -> Answer | None:
        """Look at the head of a request alone: a body takes memory."""
        if not self._allowed():
            return Answer.error(401, "this desktop wants the secret of its run")
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

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        return not self.secret or hmac.compare_digest(given.encode(), f"Bearer {self.secret}".encode())

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


class Server(ThreadingHTTPServer):
    """A thread for each connection, whatever the programs of the desktop do."""

    daemon_threads = True
    request_queue_size = 128

    def verify_request(self, request: socket, client_address: tuple[str, int]) -> bool:
        """Hang up on programs of the desktop, where a run owns it: they could keep every thread busy."""
        host = client_address[0]
        return not Handler.secret or not (host.startswith("127.") or host == request.getsockname()[0])

    def process_request(self, request: socket, client_address: tuple[str, int]) -> None:
        """Start a thread; where programs have taken every process that there may be, end them first."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            Handler.guest.give_up("it had as many processes as it may have")
            super().process_request(request, client_address)


def main() -> int:
    """Bring the desktop up, then serve it for ever; the exit status."""
    walls.close_memory()
    walls.close_sockets()
    Handler.secret = sys.stdin.readline().strip()
    try:
        Handler.guest = Guest(os.environ.get("ARPO_SCREEN", "1280x720x24"))
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    server = Server(("0.0.0.0", PORT), Handler)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
