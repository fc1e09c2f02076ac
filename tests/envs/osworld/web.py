"""A server of files that is a real one, and fails in the ways of real ones."""

import re
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 2**16


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        web = self.server.web
        asked = self.headers.get("Range")
        web.asked.append((self.path, asked))
        self.close_connection = True
        if self.path not in web.files:
            self.answer(404, b"gone", 4, {})
            return
        whole, more = web.files[self.path], dict(web.headers)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and web.ranges else 0
        if start >= len(whole) > 0:
            self.answer(416, b"", 0, {})
            return
        said = start + web.off_by
        more |= {"Content-Range": f"bytes {said}-{len(whole) - 1}/{len(whole)}"} if start else {}
        content = whole[start:]
        sent = content[: web.cuts.pop(0)] if web.cuts else content
        with suppress(OSError):  # a client that has heard enough hangs up
            self.answer(206 if start else 200, sent, len(content) + web.lies_by, more)
            if web.hangs:
                web.hangs.pop().wait(60)
            for _ in iter(lambda: web.endless, False):
                self.wfile.write(bytes(PIECE))
                web.begun.set()

    def do_HEAD(self):
        self.server.web.asked.append((self.path, "HEAD"))
        self.answer(self.server.web.status, b"", 0, {})

    def answer(self, status, content, length, headers):
        self.send_response(status)
        for name, value in ({"Content-Type": "application/octet-stream"} | headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


class Web:
    """A server of `files`, by path.

    `cuts` are numbers of bytes after which connections break, `hangs` are events that connections wait for with their
    last bytes sent; `lies_by` is added to every length, `off_by` to every place; without `ranges` it always begins at
    the start; `endless` it goes on sending after the content, and sets `begun`.
    """

    def __init__(self, address):
        self.address = address
        self.files, self.headers, self.asked, self.cuts, self.hangs = {}, {}, [], [], []
        self.ranges, self.endless, self.lies_by, self.off_by, self.status = True, False, 0, 0, 200
        self.begun = threading.Event()

    def url(self, path):
        return self.address + path


@contextmanager
def running_web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.web
    finally:
        server.web.endless = False
        server.shutdown()
        server.server_close()
