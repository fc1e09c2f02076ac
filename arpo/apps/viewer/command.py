"""The command that shows a run, also while it goes on: python -m arpo view outputs/arpo_miniwob/default."""

import argparse
import logging
import os
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from typing_extensions import override

from arpo.apps.viewer.parts import KEY
from arpo.apps.viewer.site import Site
from arpo.errors import ConfigError
from arpo.host.container_spec import LOOPBACK
from arpo.host.log_lines import log_every

log = logging.getLogger(__name__)

OUTPUTS = Path("outputs")
LOOK_EVERY_S = 5.0
"""Seconds between two looks at the run, which cost a few milliseconds where nothing is new."""
SHARE = 0.01
"""The most of one core's time that goes into looking: a large run is looked at less often."""
NICENESS = 10
"""The run comes first."""


def main(arguments: Sequence[str]) -> int:
    """Write the viewer of a run, or of two, and return the exit status."""
    asked = parser().parse_args(arguments)
    runs = asked.runs or [last_run(OUTPUTS)]
    if len(runs) > 2:
        raise ConfigError(f"two runs stand side by side, not {len(runs)}: name one or two")
    out = asked.out or runs[0] / "view"
    started = time.monotonic()
    site = Site(runs, out, live=asked.serve)
    write(site)
    log.info("wrote %s in %.1f s", out, time.monotonic() - started)
    if asked.serve:
        with make_server(site, asked.port) as server:
            serve(server, lambda: write(site))
    page = (out / "index.html").resolve().as_uri()
    if asked.open and not asked.serve:
        webbrowser.open(page)
    log.info("open %s in a browser", page)
    return 0


def write(site: Site) -> None:
    """Write the viewer's folder."""
    try:
        with log_every("writing the viewer"):
            site.write()
    except OSError as error:
        raise ConfigError(f"cannot write the viewer to {site.out}: {error}; name a folder with --out") from error


def last_run(outputs: Path) -> Path:
    """Return the run below a folder that wrote an episode last."""
    stores = list(outputs.glob("*/*/trajectories/train"))
    if not stores:
        raise ConfigError(f"there is no run in {outputs}/ to look at: train one with `make train`, or name its folder")
    return max(stores, key=lambda store: store.stat().st_mtime).parents[1]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m arpo view", description="Write a folder that shows a run, or two side by side, in a browser."
    )
    made.add_argument("runs", type=Path, nargs="*", help="folders of runs; by default the last one in outputs/")
    made.add_argument("--out", type=Path, help="the folder to write; RUN/view by default")
    made.add_argument("--serve", action="store_true", help="serve the folder to this machine and follow a live run")
    made.add_argument("--port", type=int, default=8642, help="of --serve")
    made.add_argument("--open", action="store_true", help="open the page in the browser of this machine")
    return made


def make_server(site: Site, port: int) -> ThreadingHTTPServer:
    """Return a server of the viewer's folder and of the runs' screenshots; port 0 is any that is free."""
    stores = {run.letter: run.store.resolve() / "screens" for run in site.runs}
    try:
        return ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, directory=str(site.out), screens=stores))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot serve at port {port}: {error}; name another with --port") from error


def serve(server: ThreadingHTTPServer, look: Callable[[], None]) -> None:
    """Serve the viewer, and look for news of its runs, until Ctrl-C."""
    os.nice(NICENESS)
    log.info("http://%s:%d/ follows the run; Ctrl-C ends it", LOOPBACK, server.server_port)
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


class _Handler(SimpleHTTPRequestHandler):
    """Files of the viewer's folder, and `/screens/<run>/<xx>/<key>.png`; nothing else, and nothing is listed."""

    def __init__(self, *args: Any, screens: Mapping[str, Path], **kwargs: Any) -> None:
        self._screens = screens
        super().__init__(*args, **kwargs)

    @override
    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        # A page elsewhere could have a name that leads here: only this machine's own names are answered.
        is_local = (self.headers.get("Host") or "").partition(":")[0] in (LOOPBACK, "localhost")
        if not is_local:
            self.send_error(403)
        return is_local

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
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        # The data are scripts, and a foreign page may run scripts from anywhere that allows it.
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        super().end_headers()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
