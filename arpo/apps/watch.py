"""Desktops that run on this machine, live in a browser: python -m arpo watch.

A page for this machine alone that asks each desktop for a screenshot, as any client does: nothing is added to a guest,
and nothing can be done to it from there.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from contextlib import closing, suppress
from http import HTTPStatus

from arpo.apps.loopback import LocalHandler, LocalServer
from arpo.envs.guest.client import Guest
from arpo.envs.guest.image import GUEST_PORT
from arpo.errors import ArpoError
from arpo.host.container_spec import LOOPBACK
from arpo.host.containers import RunningContainer, running_containers

log = logging.getLogger(__name__)

PAGE = """<!doctype html><meta charset="utf-8"><title>ARPO: desktops</title>
<style>
body { margin: 1em; font: 14px sans-serif; background: #eee; display: flex; flex-wrap: wrap; gap: 1em }
figure { margin: 0 } img { max-width: 640px; display: block; background: #ccc; min-height: 100px; min-width: 200px }
</style>
<p id="none">No desktop runs on this machine now; this page shows one as soon as it does.</p>
<script>
const later = ms => new Promise(done => setTimeout(done, ms))
async function follow(image, id) {
  while (image.isConnected) {
    const answer = await fetch(`/${id}.png`).catch(() => null)
    if (answer?.ok) {
      const old = image.src
      image.src = URL.createObjectURL(await answer.blob())
      URL.revokeObjectURL(old)
    }
    await later(answer?.ok ? 300 : 2000)
  }
}
async function list() {
  while (true) {
    const answer = await fetch('/desktops').catch(() => null)
    const desktops = answer?.ok ? await answer.json() : []
    document.getElementById('none').hidden = desktops.length > 0
    const ids = new Set(desktops.map(desktop => desktop.id))
    for (const figure of document.querySelectorAll('figure')) if (!ids.has(figure.id)) figure.remove()
    for (const desktop of desktops) {
      if (document.getElementById(desktop.id)) continue
      const figure = document.createElement('figure'), image = document.createElement('img')
      figure.id = desktop.id
      figure.append(image, `${desktop.image} ${desktop.id}`)
      document.body.append(figure)
      follow(image, desktop.id)
    }
    await later(2000)
  }
}
list()
</script>
"""


class WatchServer(LocalServer):
    """The server of the page."""

    def __init__(self, port: int) -> None:
        super().__init__(port, _Handler)
        self._running: dict[str, RunningContainer] = {}

    def refresh(self) -> list[dict[str, str]]:
        """Ask the engine what runs now, and return it as the page wants it.

        Raises:
            EnvError: If no engine answers.
        """
        self._running = {each.id[:12]: each for each in running_containers(GUEST_PORT)}
        return [{"id": name, "image": each.image} for name, each in self._running.items()]

    def screenshot(self, name: str) -> bytes | None:
        """Return the screen of a desktop, None if there was no such desktop when the engine was asked last.

        Raises:
            EnvError: If it does not answer, such as one that is paused between two steps.
        """
        found = self._running.get(name)
        if found is None:
            return None
        with closing(Guest(f"http://{LOOPBACK}:{found.port}", found.environment.get("ARPO_SECRET", ""))) as guest:
            return guest.screenshot()


class _Handler(LocalHandler):
    """`/`: the page; `/desktops`: what runs; `/<id>.png`: the screen of one."""

    server: WatchServer

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Answer a request of this machine's browser."""
        try:
            if self.path == "/":
                self._send("text/html; charset=utf-8", PAGE.encode())
            elif self.path == "/desktops":
                self._send("application/json", json.dumps(self.server.refresh()).encode())
            elif (png := self.server.screenshot(self.path.strip("/").removesuffix(".png"))) is not None:
                self._send("image/png", png)
            else:
                self.send_error(HTTPStatus.NOT_FOUND)
        except ArpoError as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, explain=str(error))

    def _send(self, content_type: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(words: Sequence[str]) -> int:
    """Serve the page until Ctrl-C and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m arpo watch", description="Watch the desktops that run on this machine, live, in a browser."
    )
    parser.add_argument(
        "--port", type=int, default=8643, help="of the page, on this machine alone; 0: any that is free"
    )
    with WatchServer(parser.parse_args(words).port) as server:
        server.refresh()
        log.info("%s shows the desktops of this machine; Ctrl-C ends it", server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
        log.info("the desktops go on")
    return 0
