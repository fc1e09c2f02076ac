"""The viewer of a live run: a server for this machine alone, which writes what is new every few seconds."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from typing_extensions import override

from arpo.apps.loopback import LocalHandler, LocalServer
from arpo.apps.viewer.parts import KEY
from arpo.apps.viewer.site import Site

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""Seconds between two looks at the run, which cost a few milliseconds where nothing is new."""
SHARE = 0.01
"""The most of one core's time that goes into looking: a large run is looked at less often."""
NICENESS = 10
"""The run comes first."""


def make_server(site: Site, port: int) -> LocalServer:
    """Return a server of the viewer's folder and of the runs' screenshots."""
    stores = {run.letter: run.store.resolve() / "screens" for run in site.runs}
    return LocalServer(port, partial(_Handler, directory=str(site.out), screens=stores))


def serve(server: LocalServer, look: Callable[[], None]) -> None:
    """Serve the viewer, and look for news of its runs, until Ctrl-C."""
    os.nice(NICENESS)
    log.info("%s follows the run; Ctrl-C ends it", server.address)
    threading.Thread(target=server.serve_forever, name="arpo-viewer", daemon=True).start()
    try:
        pause_s = LOOK_EVERY_S
        while True:
            time.sleep(pause_s)
            started = time.process_time()
            look()
            pause_s = pause_after(time.process_time() - started)
    except KeyboardInterrupt:
        log.info("ended")
    finally:
        server.shutdown()


def pause_after(spent_s: float) -> float:
    """Return the seconds to wait after a look that took some seconds of a core."""
    return max(LOOK_EVERY_S, spent_s / SHARE)


class _Handler(LocalHandler, SimpleHTTPRequestHandler):
    """Files of the viewer's folder, and `/screens/<run>/<xx>/<key>.png`; nothing else, and nothing is listed."""

    def __init__(self, *args: Any, screens: Mapping[str, Path], **kwargs: Any) -> None:
        self._screens = screens
        super().__init__(*args, **kwargs)

    @override
    def translate_path(self, path: str) -> str:
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[0] == "screens" and len(parts) == 4 and parts[1] in self._screens:
            key = parts[3].removesuffix(".png")
            return str(self._screens[parts[1]] / key[:2] / f"{key}.png") if KEY.fullmatch(key) else os.devnull
        return super().translate_path(path)

    @override
    def send_head(self) -> BytesIO | BinaryIO | None:
        try:
            return super().send_head()
        except ValueError:  # a name that no file can have: with a null byte, or half of a surrogate pair
            self.send_error(404)
            return None

    @override
    def list_directory(self, path: str | os.PathLike[str]) -> None:
        self.send_error(404)

    @override
    def end_headers(self) -> None:
        # The data are scripts, and a page of somebody else may run scripts from anywhere that allows it.
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()
