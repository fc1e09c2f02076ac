"""What each route does: OSWorld's by their names, requests and answers, and a few of our own."""

import base64
import io
import json
import mimetypes
import os
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import desktop_shell
import programs
import terminal
from desktop import Desktop
from devices import Devices
from files import Files
from PIL import Image
from programs import Programs

Parameters = Mapping[str, object]

OPEN_LIMIT_S = 25.0
"""Less than the 30 s that our client waits: then the answer says which window is missing."""
DOWNLOAD_TIMEOUT_S = 60.0
RESET_LIMIT_S = 5.0
ACCESSIBILITY = Path(__file__).with_name("accessibility.py")
LARGEST_TREE = 16 * 2**20
"""Bytes; LibreOffice with a sheet has one."""
TERMINALS = ("XTerm", "UXTerm")


@dataclass(frozen=True)
class Answer:
    """What goes back over the wire."""

    body: bytes
    content_type: str = "application/json"
    status: int = 200

    @classmethod
    def json(cls, content: object, status: int = 200) -> "Answer":
        """Answer with JSON."""
        return cls(json.dumps(content).encode(), status=status)

    @classmethod
    def text(cls, content: str) -> "Answer":
        """Answer with a sentence."""
        return cls(content.encode(), "text/plain; charset=utf-8")

    @classmethod
    def error(cls, status: int, message: str) -> "Answer":
        """Answer that something went wrong, as OSWorld does."""
        return cls.json({"status": "error", "message": message}, status)


class Guest:
    """The routes of one desktop."""

    def __init__(self, desktop: Desktop, devices: Devices, running: Programs, files: Files) -> None:
        self._desktop = desktop
        self._devices = devices
        self._programs = running
        self._files = files
        self._killed_before = 0
        self._routes: dict[tuple[str, str], Callable[[Parameters], Answer]] = {
            # OSWorld's
            ("GET", "/screenshot"): self._screenshot,
            ("GET", "/accessibility"): self._accessibility,
            ("GET", "/terminal"): self._terminal,
            ("GET", "/platform"): lambda _: Answer.text("Linux"),
            ("GET", "/cursor_position"): lambda _: Answer.json(self._desktop.pointer()),
            ("POST", "/screen_size"): self._screen_size,
            ("POST", "/window_size"): self._window_size,
            ("POST", "/desktop_path"): self._desktop_path,
            ("POST", "/list_directory"): self._list_directory,
            ("POST", "/file"): self._file,
            ("POST", "/execute"): self._execute,
            ("POST", "/setup/execute"): self._execute,
            ("POST", "/setup/execute_with_verification"): self._execute_with_verification,
            ("POST", "/run_python"): self._run_python,
            ("POST", "/run_bash_script"): self._run_bash_script,
            ("POST", "/setup/launch"): self._launch,
            ("POST", "/setup/upload"): self._upload,
            ("POST", "/setup/download_file"): self._download,
            ("POST", "/setup/open_file"): self._open,
            ("POST", "/setup/activate_window"): self._activate_window,
            ("POST", "/setup/close_window"): self._close_window,
            # ours
            ("GET", "/health"): self._health,
            ("GET", "/windows"): lambda _: Answer.json(self._desktop.windows()),
            ("POST", "/action"): self._action,
            ("POST", "/setup/reset"): self._reset,
        }

    def answer(self, method: str, path: str, parameters: Parameters) -> Answer:
        """Answer one request."""
        route = self._routes.get((method, path.rstrip("/")))
        if route is None:
            return Answer.error(404, f"there is no {method} {path} here")
        return route(parameters)

    def _screenshot(self, parameters: Parameters) -> Answer:
        """OSWorld's, and `quiet_s` with `limit_s`: wait first until the picture has come to rest."""
        if "quiet_s" in parameters:
            quiet_s, limit_s = float(str(parameters["quiet_s"])), float(str(parameters["limit_s"]))
            self._desktop.settle(quiet_s, limit_s, programs.anything_runs)
        return Answer(self._desktop.screenshot(), "image/png")

    def _accessibility(self, parameters: Parameters) -> Answer:
        """Give every widget of applications that describe theirs, and the windows of the others."""
        active = self._desktop.active_window()
        windows = [{**window, "active": window["id"] == active} for window in self._desktop.windows()]
        done = self._programs.execute([sys.executable, "-I", str(ACCESSIBILITY), json.dumps(windows)], shell=False)
        if done["returncode"] != 0:
            return Answer.error(500, done["error"])
        xml = zlib.decompressobj().decompress(base64.b64decode(done["output"]), LARGEST_TREE)
        return Answer.json({"AT": xml.decode(errors="replace")})

    def _terminal(self, parameters: Parameters) -> Answer:
        """Give what the terminal shows that has the keyboard, or else the newest."""
        active = self._desktop.active_window()
        terminals = [window for window in self._desktop.windows() if window["class"] in TERMINALS]
        terminals.sort(key=lambda window: window["id"] == active)
        output = terminal.shown(terminals[-1]["pid"], self._programs) if terminals else None
        return Answer.json({"output": output, "status": "success"})

    def _screen_size(self, parameters: Parameters) -> Answer:
        return Answer.json({"width": self._desktop.width, "height": self._desktop.height})

    def _window_size(self, parameters: Parameters) -> Answer:
        name = str(parameters["app_class_name"])
        for window in self._desktop.windows():
            if name.casefold() in (window["instance"].casefold(), window["class"].casefold()):
                return Answer.json({"width": window["width"], "height": window["height"]})
        return Answer.error(404, f"no window has the class or the instance {name}")

    def _desktop_path(self, parameters: Parameters) -> Answer:
        return Answer.json({"desktop_path": str(Path.home() / "Desktop")})

    def _list_directory(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "path")
        if not path.exists():
            return Answer.error(404, f"there is no {path}")
        return Answer.json({"directory_tree": _tree(path)})

    def _file(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "file_path")
        if not path.is_file():
            return Answer.error(404, "File not found")
        return Answer(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream")

    def _execute(self, parameters: Parameters) -> Answer:
        done = self._programs.execute(parameters["command"], shell=_flag(parameters, "shell"))
        return Answer.json({"status": "success", **done})

    def _execute_with_verification(self, parameters: Parameters) -> Answer:
        done = self._programs.execute(parameters["command"], shell=_flag(parameters, "shell"))
        wanted = parameters.get("verification") or {}
        deadline = time.monotonic() + float(str(parameters.get("max_wait_time", 10)))
        began = time.monotonic()
        while not (verified := self._verify(wanted)) and time.monotonic() < deadline:
            time.sleep(float(str(parameters.get("check_interval", 1))))
        outcome = {"verification": wanted, "wait_time": time.monotonic() - began, **done}
        if not verified:
            return Answer.json({"status": "error", "message": "the verification failed", **outcome}, 500)
        return Answer.json({"status": "success", **outcome})

    def _verify(self, wanted: Mapping[str, str]) -> bool:
        window, command = wanted.get("window_exists"), wanted.get("command_success")
        if window and self._desktop.find_window(window, strict=False, by_class=False) is None:
            return False
        return not command or self._programs.execute(command, shell=True)["returncode"] == 0

    def _run_python(self, parameters: Parameters) -> Answer:
        done = self._programs.execute([sys.executable, "-c", str(parameters["code"])], shell=False, timeout_s=30)
        ended_well = done["returncode"] == 0
        return Answer.json(
            {
                "status": "success" if ended_well else "error",
                "message": done["output"] + done["error"],
                "output": done["output"],
                "error": done["error"],
                "return_code": done["returncode"],
                "need_more": False,
            }
        )

    def _run_bash_script(self, parameters: Parameters) -> Answer:
        script = str(parameters["script"])
        directory = Path(os.path.expanduser(str(parameters.get("working_dir") or "~")))
        if not directory.is_dir():
            return Answer.error(400, f"there is no directory {directory}: the script was not run")
        command = ["bash", "-c", f'cd "$1" || exit; shift\n{script}', "bash", str(directory)]
        done = self._programs.execute(command, shell=False, timeout_s=float(str(parameters.get("timeout", 30))))
        status = "success" if done["returncode"] == 0 else "error"
        return Answer.json({"status": status, **done, "output": done["output"] + done["error"], "error": ""})

    def _launch(self, parameters: Parameters) -> Answer:
        command = parameters["command"]
        self._programs.launch(command, shell=_flag(parameters, "shell"))
        return Answer.text(f"{command} launched successfully")

    def _upload(self, parameters: Parameters) -> Answer:
        path, content = _path(parameters, "file_path"), parameters["file_data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
        return Answer.text("File Uploaded")

    def _download(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "path")
        with urllib.request.urlopen(str(parameters["url"]), timeout=DOWNLOAD_TIMEOUT_S) as response:
            content = response.read()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return Answer.text("File downloaded successfully")

    def _open(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "path")
        if not path.exists():
            return Answer.error(404, f"there is no {path}")
        self._programs.launch(["pcmanfm", str(path)], shell=False)
        if not _within(OPEN_LIMIT_S, lambda: self._find(path.name) is not None):
            return Answer.error(500, f"no window shows {path.name} after {OPEN_LIMIT_S:.0f} s")
        return Answer.text("File opened successfully")

    def _find(self, name: str) -> int | None:
        return self._desktop.find_window(name, strict=False, by_class=False)

    def _activate_window(self, parameters: Parameters) -> Answer:
        return self._with_window(parameters, self._desktop.activate)

    def _close_window(self, parameters: Parameters) -> Answer:
        return self._with_window(parameters, self._desktop.close)

    def _with_window(self, parameters: Parameters, act: Callable[[int], None]) -> Answer:
        name = str(parameters["window_name"])
        strict, by_class = _flag(parameters, "strict"), _flag(parameters, "by_class")
        window = self._desktop.find_window(name, strict=strict, by_class=by_class)
        if window is None:
            return Answer.error(404, f"there is no window {name!r}")
        act(window)
        return Answer.text("Window found and told")

    def _health(self, parameters: Parameters) -> Answer:
        """Take a screenshot, because a server whose X server hangs still answers; then name what is wrong."""
        picture = Image.open(io.BytesIO(self._desktop.screenshot()))
        troubles = programs.troubles(self._killed_before)
        report = {"troubles": troubles, "width": picture.width, "height": picture.height}
        return Answer.json({**report, "warm": self._programs.warm}, 503 if troubles else 200)

    def _action(self, parameters: Parameters) -> Answer:
        self._devices.play(parameters["events"])
        return Answer.json({"status": "success"})

    def _reset(self, parameters: Parameters) -> Answer:
        """End every program, renew the files, let go of every key: X server and window manager stay."""
        self._programs.end_all()
        self._devices.release_all()
        self._devices.play([["key_down", "esc"], ["key_up", "esc"]])  # the window manager's menu, which outlives them
        self._files.renew()
        self._killed_before = programs.killed_for_memory()
        self._devices.park()
        if not _within(RESET_LIMIT_S, lambda: not self._desktop.windows()):
            return Answer.error(500, "windows of programs that were killed are still there")
        desktop_shell.begin(self._desktop, self._programs)
        return Answer.json({"status": "success"})


def _within(limit_s: float, ready: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _flag(parameters: Parameters, name: str) -> bool:
    value = parameters.get(name, False)
    return value in (True, "true", "True", "1", 1)


def _path(parameters: Parameters, name: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(str(parameters[name]))))


def _tree(path: Path) -> dict:
    if not path.is_dir():
        return {"type": "file", "name": path.name}
    try:
        children = [_tree(child) for child in sorted(path.iterdir())]
    except OSError as error:
        return {"error": str(error)}
    return {"type": "directory", "name": path.name, "children": children}
