"""A guest that speaks OSWorld's routes and remembers what was done to it, and a server of files that fails."""

import io
import json
import re
import shlex
import threading
from contextlib import contextmanager, suppress
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from PIL import Image, ImageDraw

HOME = "/".join(("", "home", "user"))
NOTE = f"{HOME}/Desktop/note.txt"  # what the keyboard types into


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        guest, route = self.server.guest, urlsplit(self.path).path
        guest.asked.append((self.command, route, raw, dict(self.headers), self.client_address))
        if guest.secret and self.headers.get("Authorization") != f"Bearer {guest.secret}":
            self.send_error(401)
            return
        if route in guest.lies:
            self.close_connection = True
            with suppress(OSError):  # a client that has heard enough hangs up
                guest.lies[route](self.connection)
            return
        status, content = guest.answer(self.command, self.path, fields(self.headers.get("Content-Type", ""), raw))
        self.send_response(status)
        self.send_header("Content-Type", guest.content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_GET  # noqa: N815 - the names are http.server's

    def log_message(self, *arguments):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that hangs up is none."""


class FakeGuest:
    """One machine. `web` is what the internet holds, by path; `refused` are the routes that answer with an error;
    `lies` are what is done with the connection of a route instead of an answer; `asked` are all requests."""

    def __init__(self):
        self.files, self.web, self.lies, self.refused = {}, {}, {}, set()
        self.windows, self.launched, self.executed, self.fetched, self.asked = [], [], [], [], []
        self.tabs = {"first": "about:blank"}
        self.content_type, self.secret = "application/octet-stream", ""
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.guest = self
        self.port = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method, target, body):
        path = urlsplit(target).path
        if path in self.refused:
            return failure(500, f"{path} does not work")
        if path.startswith("/web/"):
            self.fetched.append(path)
            return (200, self.web[path]) if path in self.web else failure(404, "gone")
        if path.startswith("/json/"):
            return self.devtools(method, target)
        route = getattr(self, f"{method.lower()}_{path.strip('/').replace('/', '_')}", None)
        return failure(404, f"no route {method} {path}") if route is None else route(body)

    def get_screenshot(self, body):
        image = Image.new("RGB", (160, 120), (30, 60, 90))
        state = f"{sorted(self.files.items())}{self.windows}"
        ImageDraw.Draw(image).text((2, 2), f"{hash(state) % 10**8}")
        image.save(png := io.BytesIO(), "PNG")
        return 200, png.getvalue()

    post_judge = staticmethod(lambda body: (200, b"judging"))
    get_platform = staticmethod(lambda body: (200, b"Linux"))

    def post_file(self, body):
        content = self.files.get(body["file_path"])
        return failure(404, "File not found") if content is None else (200, content)

    def post_setup_upload(self, body):
        self.files[body["file_path"]] = body["file_data"]
        return 200, b"File Uploaded"

    def post_setup_launch(self, body):
        self.launched.append((body["command"], body["shell"]))
        name = body["command"] if isinstance(body["command"], str) else body["command"][0]
        self.windows.append(name.split()[0])
        return 200, b"launched"

    def post_setup_open_file(self, body):
        if body["path"] not in self.files:
            return failure(404, f"File not found: {body['path']}")
        self.windows.append(body["path"].rpartition("/")[2])
        return 200, b"opened"

    def post_setup_activate_window(self, body):
        found = [title for title in self.windows if body["window_name"] in title]
        self.windows = [title for title in self.windows if title not in found[:1]] + found[:1]
        return (200, b"activated") if found else failure(500, "no such window")

    def post_setup_close_window(self, body):
        before = self.windows
        self.windows = [title for title in before if body["window_name"] not in title]
        return failure(500, "no such window") if self.windows == before else (200, b"closed")

    def post_execute(self, body):
        command = body["command"]
        words = shlex.split(command) if isinstance(command, str) else command
        self.executed.append(words)
        output, error, code = self.run(words)
        return in_json(200, status="success", output=output, error=error, returncode=code)

    post_setup_execute = post_execute

    def run(self, words):
        match words:
            case ["python", "-c", source] if "pyautogui" in source:
                for text in re.findall(r"pyautogui\.write\('(.*?)'", source):
                    self.files[NOTE] = self.files.get(NOTE, b"") + text.encode()
            case ["echo", *rest]:
                return " ".join(rest).replace("$HOME", HOME) + "\n", "", 0
            case _:
                return "", f"{words}: not found", 127
        return "", "", 0

    def devtools(self, method, target):
        path, query = urlsplit(target).path, unquote(urlsplit(target).query)
        match path.split("/")[2:]:
            case ["list"]:
                return 200, json.dumps([self.tab(key) for key in self.tabs]).encode()
            case ["new"] if method == "PUT":
                key = f"tab{len(self.tabs)}"
                self.tabs[key] = query
                return in_json(200, **self.tab(key))
            case ["close", key]:
                del self.tabs[key]
                return 200, b"Target is closing"
        return failure(405, "Using unsafe HTTP verb")

    def tab(self, key):
        return {"id": key, "type": "page", "url": self.tabs[key], "title": f"Page {key}"}


class FakeContainer:
    def __init__(self):
        self.guest = FakeGuest()
        self.running, self.out_of_memory = True, False

    def port(self, guest_port):
        return self.guest.port

    def ended_for_memory(self):
        return self.out_of_memory

    def is_running(self):
        return self.running

    is_untouched = is_running

    def last_words(self):
        return "container ended with exit status 1: qemu: no memory"

    def restart(self):
        self.remove()
        self.__init__()

    def remove(self):
        if self.running:
            self.guest.stop()
        self.running = False


class FakeEngine:
    def __init__(self):
        self.machines, self.specs = [], []
        self.removed = []
        self.broken = self.closed = False

    def remove(self, machine):
        self.removed.append(machine)
        machine.remove()

    def start(self, spec):
        machine = FakeContainer()
        self.specs.append(spec)
        machine.guest.secret = spec.environment.get("ARPO_SECRET", "")
        if self.broken:
            machine.guest.refused.add("/screenshot")
        self.machines.append(machine)
        return machine

    def close(self):
        self.closed = True

    @property
    def guest(self):
        return self.machines[-1].guest


def in_json(code, /, **answer):
    return code, json.dumps(answer).encode()


def failure(status, message):
    return in_json(status, status="error", message=message)


def fields(content_type, raw):
    if "json" in content_type:
        return json.loads(raw)
    if "multipart" not in content_type:
        return {name: values[0] for name, values in parse_qs(raw.decode()).items()}
    found = {}
    for part in BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw).get_payload():
        content = part.get_payload(decode=True)
        name = part.get_param("name", header="content-disposition")
        found[name] = content if part.get_filename() else content.decode()
    return found


@contextmanager
def running_guest():
    guest = FakeGuest()
    try:
        yield guest
    finally:
        guest.stop()


class WebHandler(Handler):
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
                self.wfile.write(bytes(2**16))
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
    server = Server(("127.0.0.1", 0), WebHandler)
    server.web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server.web
    finally:
        server.web.endless = False
        server.shutdown()
        server.server_close()
