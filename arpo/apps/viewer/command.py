"""The command that shows a run: python -m arpo view outputs/arpo_miniwob/default."""

import argparse
import logging
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from arpo.apps.viewer.serve import make_server, serve
from arpo.apps.viewer.site import Site
from arpo.errors import ConfigError
from arpo.host.heartbeat import still

log = logging.getLogger(__name__)

OUTPUTS = Path("outputs")


def main(words: Sequence[str]) -> int:
    """Write the viewer of a run, or of two, and return the exit status."""
    asked = parser().parse_args(words)
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
        with still("writing the viewer"):
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
    """Return the reader of the words after `view`."""
    made = argparse.ArgumentParser(
        prog="python -m arpo view", description="Write a folder that shows a run, or two side by side, in a browser."
    )
    made.add_argument("runs", type=Path, nargs="*", help="folders of runs; by default the last one in outputs/")
    made.add_argument("--out", type=Path, help="the folder to write; RUN/view by default")
    made.add_argument("--serve", action="store_true", help="serve the folder to this machine and follow a live run")
    made.add_argument("--port", type=int, default=8642, help="of --serve")
    made.add_argument("--open", action="store_true", help="open the page in the browser of this machine")
    return made
