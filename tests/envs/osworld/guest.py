"""A guest that speaks OSWorld's routes and remembers what was done to it: files, windows, programs, typed text."""

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
NOTE = f"{HOME}/Desktop/note.txt"
"""What the keyboard types into."""


class FakeGuest:
    """One machine. `web` is what the internet holds, by path; `refused` are the routes that answer with an error,
    `silent` those that hang up; `lies` are what is done with the connection of a route instead of an answer."""

    def __init__(self, screen=(160, 120)):
        self.files = {}
        self.windows = []
        self.launched = []
        self.executed = []
        self.opened = []
        self.tabs = {"first": "about:blank"}
        self.web = {}
        self.fetched = []
        self.refused = set()
        self.silent = set()
        self.lies = {}
        self.content_type = "application/octet-stream"
        self.screen = screen
        guest = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self._answer({})

            def do_PUT(self):
                self._answer({})

            def do_POST(self):
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self._answer(fields(self.headers.get("Content-Type", ""), raw))

            def _answer(self, body):
                route = urlsplit(self.path).path
                if route in guest.silent or route in guest.lies:
                    self.close_connection = True
                    guest.lie(route, self.connection)
                    return
                status, kind, content = guest.answer(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments):
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                """A client that hangs up is none."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def lie(self, route, connection):
        with suppress(OSError):  # a client that has heard enough hangs up
            self.lies.get(route, lambda _: None)(connection)

    def answer(self, method, target, body):
        path = urlsplit(target).path
        if path in self.refused:
            return failure(500, f"{path} does not work")
        if path.startswith("/web/"):
            self.fetched.append(path)
            return (200, self.content_type, self.web[path]) if path in self.web else failure(404, "gone")
        if path.startswith("/json/"):
            return self.devtools(method, target)
        route = getattr(self, f"{method.lower()}_{path.strip('/').replace('/', '_')}", None)
        return failure(404, f"no route {method} {path}") if route is None else route(body)

    def get_screenshot(self, body):
        image = Image.new("RGB", self.screen, (30, 60, 90))
        state = f"{sorted(self.files.items())}{self.windows}"
        ImageDraw.Draw(image).text((2, 2), f"{hash(state) % 10**8}")
        png = io.BytesIO()
        image.save(png, "PNG")
        return 200, "image/png", png.getvalue()

    def get_platform(self, body):
        return 200, "text/plain", b"Linux"

    def get_terminal(self, body):
        return success(output="43 132", status="success")

    def post_screen_size(self, body):
        return success(width=self.screen[0], height=self.screen[1])

    def post_file(self, body):
        content = self.files.get(body["file_path"])
        return failure(404, "File not found") if content is None else (200, "application/octet-stream", content)

    def post_setup_upload(self, body):
        self.files[body["file_path"]] = body["file_data"]
        return 200, "text/plain", b"File Uploaded"

    def post_setup_launch(self, body):
        self.launched.append((body["command"], body["shell"]))
        name = body["command"] if isinstance(body["command"], str) else body["command"][0]
        self.windows.append(name.split()[0])
        return 200, "text/plain", b"launched"

    def post_setup_open_file(self, body):
        if body["path"] not in self.files:
            return failure(404, f"File not found: {body['path']}")
        self.opened.append(body["path"])
        self.windows.append(body["path"].rpartition("/")[2])
        return 200, "text/plain", b"opened"

    def post_setup_activate_window(self, body):
        found = [title for title in self.windows if body["window_name"] in title]
        if not found:
            return failure(500, "no such window")
        self.windows.remove(found[0])
        self.windows.append(found[0])
        return 200, "text/plain", b"activated"

    def post_setup_close_window(self, body):
        before = len(self.windows)
        self.windows = [title for title in self.windows if body["window_name"] not in title]
        return failure(500, "no such window") if len(self.windows) == before else (200, "text/plain", b"closed")

    def post_execute(self, body):
        command = body["command"]
        words = shlex.split(command) if isinstance(command, str) else command
        self.executed.append(words)
        output, error, code = self.run(words)
        return success(status="success", output=output, error=error, returncode=code)

    post_setup_execute = post_execute

    def run(self, words):
        match words:
            case ["python", "-c", source] if "pyautogui" in source:
                for text in re.findall(r"pyautogui\.write\('(.*?)'", source):
                    self.files[NOTE] = self.files.get(NOTE, b"") + text.encode()
            case ["echo", "$HOME"]:
                return f"{HOME}\n", "", 0
            case ["echo", *rest]:
                return " ".join(rest) + "\n", "", 0
            case ["cat", path] if path in self.files:
                return self.files[path].decode(), "", 0
            case ["rm", path]:
                self.files.pop(path, None)
            case _:
                return "", f"{words}: not found", 127
        return "", "", 0

    def devtools(self, method, target):
        path, query = urlsplit(target).path, unquote(urlsplit(target).query)
        match path.split("/")[2:]:
            case ["list"]:
                return 200, "application/json", json.dumps([self.tab(key) for key in self.tabs]).encode()
            case ["new"] if method == "PUT":
                key = f"tab{len(self.tabs)}"
                self.tabs[key] = query
                return 200, "application/json", json.dumps(self.tab(key)).encode()
            case ["close", key]:
                del self.tabs[key]
                return 200, "text/plain", b"Target is closing"
        return failure(405, "Using unsafe HTTP verb")

    def tab(self, key):
        return {"id": key, "type": "page", "url": self.tabs[key], "title": f"Page {key}"}


class FakeContainer:
    """A container whose guest is a server in this process."""

    def __init__(self):
        self.guest = FakeGuest()
        self.running = True

    def port(self, guest_port):
        return self.guest.port

    def is_running(self):
        return self.running

    def last_words(self):
        return "container is exited, exit status 1: qemu: no memory"

    def restart(self):
        self.remove()
        self.__init__()

    def remove(self):
        if self.running:
            self.guest.stop()
        self.running = False


class FakeEngine:
    """Starts fake machines and remembers them."""

    def __init__(self):
        self.machines = []
        self.removed = []
        self.broken = False

    def remove(self, machine):
        self.removed.append(machine)
        machine.remove()

    def start(self, spec):
        machine = FakeContainer()
        if self.broken:
            machine.guest.refused.add("/screenshot")
        self.machines.append(machine)
        return machine

    def close(self):
        self.closed = True

    @property
    def guest(self):
        return self.machines[-1].guest


def success(**answer):
    return 200, "application/json", json.dumps(answer).encode()


def failure(status, message):
    return status, "application/json", json.dumps({"status": "error", "message": message}).encode()


def fields(content_type, raw):
    if "json" in content_type:
        return json.loads(raw)
    if "multipart" not in content_type:
        return {name: values[0] for name, values in parse_qs(raw.decode()).items()}
    found = {}
    for part in BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + raw).get_payload():
        content = part.get_payload(decode=True)
        found[part.get_param("name", header="content-disposition")] = (
            content if part.get_filename() else content.decode()
        )
    return found


@contextmanager
def running_guest(**settings):
    guest = FakeGuest(**settings)
    try:
        yield guest
    finally:
        guest.stop()
