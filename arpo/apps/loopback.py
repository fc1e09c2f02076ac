"""Servers of pages that are for this machine alone."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

from arpo.errors import ConfigError
from arpo.host.container_spec import LOOPBACK

log = logging.getLogger(__name__)


class LocalServer(ThreadingHTTPServer):
    """A server that only this machine reaches; port 0 is any that is free."""

    daemon_threads = True

    def __init__(self, port: int, handler: Callable[..., "LocalHandler"]) -> None:
        try:
            super().__init__((LOOPBACK, port), handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot serve at port {port}: {error}; name another with --port") from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class LocalHandler(BaseHTTPRequestHandler):
    """A handler that wants this machine called by its own name: a page elsewhere could have a name that leads here."""

    @override
    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        named = (self.headers.get("Host") or "").partition(":")[0] in (LOOPBACK, "localhost")
        if not named:
            self.send_error(HTTPStatus.FORBIDDEN)
        return named

    @override
    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
