"""A browser for a program of the user: its DevTools, on loopback, under an address that holds a key.

Chromium listens on no port, where every program of this machine could reach it: messages go through its pipe, beside
our own, with numbers of ours. What the program says goes to its browser as it is, and may break it.
"""

import logging
import threading
from contextlib import suppress
from hmac import compare_digest
from secrets import token_hex

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from arpo.envs.miniwob.chromium import LARGEST_MESSAGE, Browser
from arpo.errors import EnvError

logging.getLogger("websockets.server").setLevel(logging.WARNING)  # it reports every connection


class DevTools:
    """The DevTools of a browser, for as many connections as come, one after the other.

    Attributes:
        address: `ws://127.0.0.1:PORT/KEY`, as clients such as Playwright and browser-use take it.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser, self._path, self._turn = browser, f"/{token_hex(32)}", threading.Lock()
        self._server: Server = serve(
            self._relay, "127.0.0.1", 0, process_request=self._admit, compression=None, max_size=LARGEST_MESSAGE
        )
        threading.Thread(target=self._server.serve_forever, name="arpo-devtools", daemon=True).start()
        self.address = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}{self._path}"

    def close(self) -> None:
        """Close the port; the browser's end, which follows, ends what is connected."""
        self._server.shutdown()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        known = compare_digest(request.path.encode(), self._path.encode())
        return None if known else connection.respond(404, "no browser has this address\n")

    def _relay(self, connection: ServerConnection) -> None:
        def answer(message: bytes) -> None:
            with suppress(ConnectionClosed):
                connection.send(message, text=True)

        with self._turn, self._browser.shared(answer):
            try:
                for message in connection:
                    self._browser.forward(message)
            except (EnvError, ConnectionClosed, msgspec.MsgspecError):
                return  # the browser has ended, or what came is no message
