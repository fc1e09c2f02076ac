"""What each route does: OSWorld's by their names, requests and answers, and a few of our own."""

import base64
import json
import mimetypes
import os
import stat
import sys
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import desktop_shell
import functions
import programs
import terminal
import tunnel
import walls
from display import Session
from files import Files
from fingerprint import differences, fingerprint
from judge import Judge
from programs import HangingError, Programs, TooSlowError
from Xlib.error import ConnectionClosedError

Parameters = Mapping[str, object]

OPEN_LIMIT_S = 25.0
"""For a window, where a client does not say how long it waits."""
LARGEST_FILE = 32 * 2**20
"""Bytes of a file that anyone may read: a file of a terabyte takes no room on a disk, and all the memory here."""
DOWNLOAD_TIMEOUT_S = 60.0
CALL_LIMIT_S = 10.0
RESET_LIMIT_S = 5.0
REST_S = 0.05
"""For so long nothing happens on a desktop that has started."""
ACCESSIBILITY = Path(__file__).with_name("accessibility.py")
LONGEST_REASON = 500
"""Characters that say why a call was not done."""
LARGEST_TREE = 16 * 2**20
"""Bytes; LibreOffice with a sheet has one."""
LARGEST_LIST = 2**20 - 1024
"""Bytes of a list of windows in JSON: our client gives up a desktop that sends 1 MiB."""
TERMINALS = ("XTerm", "UXTerm")
KERNELS = frozenset(os.stat(each).st_dev for each in ("/proc", "/sys", "/dev/mqueue"))
"""File systems whose files are answers of the kernel, for which a program may let anyone wait."""


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
    """The routes of one desktop.

    Raises:
        StartError: If its display does not come up.
    """

    def __init__(self, screen: str) -> None:
        """Bring the desktop up; `screen` is `<width>x<height>x<depth>`."""
        self._screen = screen
        self._files = Files()
        self._judge = Judge()
        self._programs = Programs(self._judge)
        self._session = Session(screen)
        desktop_shell.begin(self._session.desktop, self._programs)
        self._refused_before = programs.refused()
        self._session.desktop.settle(REST_S, RESET_LIMIT_S, walls.anything_runs)
        self._when_new = fingerprint(self._session.desktop)
        self._routes: dict[tuple[str, str], Callable[[Parameters], Answer]] = {
            # OSWorld's
            ("GET", "/screenshot"): self._screenshot,
            ("GET", "/accessibility"): self._accessibility,
            ("GET", "/terminal"): self._terminal,
            ("GET", "/platform"): lambda _: Answer.text("Linux"),
            ("GET", "/cursor_position"): lambda _: Answer.json(self._session.desktop.pointer()),
            ("POST", "/screen_size"): self._screen_size,
            ("POST", "/window_size"): self._window_size,
            ("POST", "/desktop_path"): self._desktop_path,
            ("POST", "/list_directory"): self._list_directory,
            ("POST", "/file"): self._file,
            ("POST", "/wallpaper"): self._wallpaper,
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
            ("GET", "/windows"): self._windows,
            ("POST", "/action"): self._action,
            ("GET", "/functions"): lambda _: Answer.json(functions.signatures()),
            ("POST", "/call"): self._call,
            ("POST", "/judge"): self._begin_judging,
            ("POST", "/setup/reset"): self._reset,
        }

    def answer(self, method: str, path: str, parameters: Parameters) -> Answer:
        """Answer one request; of a desktop that its programs have made useless, with 409 and what they did."""
        route = self._routes.get((method, path.rstrip("/")))
        if route is None:
            return Answer.error(404, f"there is no {method} {path} here")
        if route == self._reset:
            return route(parameters)
        session = self._session
        try:
            if not session.ended_by:
                return route(parameters)
        except Exception as error:
            if isinstance(error, ConnectionClosedError):
                session.give_up("a program has cut this server off the display")
            elif not session.ended_by and (troubles := programs.troubles(self._refused_before)):
                session.give_up(", ".join(troubles))  # with no process left, this server starts none either
            if not session.ended_by:
                raise
        return Answer.error(409, f"the desktop is of no use any more: {session.ended_by}")

    def give_up(self, why: str) -> None:
        """End the session, which a program of it has made useless."""
        self._session.give_up(why)

    def _screenshot(self, parameters: Parameters) -> Answer:
        """OSWorld's, and `quiet_s` with `limit_s`: wait first until the picture has come to rest."""
        if "quiet_s" in parameters:
            quiet_s, limit_s = float(str(parameters["quiet_s"])), float(str(parameters["limit_s"]))
            self._session.desktop.settle(quiet_s, limit_s, walls.anything_runs)
        return Answer(self._session.desktop.screenshot(), "image/png")

    def _accessibility(self, parameters: Parameters) -> Answer:
        """Give every widget of applications that describe theirs, and the windows of the others."""
        desktop = self._session.desktop
        active = desktop.active_window()
        windows = [{**window, "active": window["id"] == active} for window in desktop.windows()]
        if answers := tunnel.stranger(os.environ["AT_SPI_BUS_ADDRESS"].partition("path=")[2], "/usr/bin/dbus-daemon"):
            return Answer.error(500, f"{answers} answers in the place of the bus of accessible applications")
        known = [json.dumps(windows), json.dumps(tunnel.programs())]
        done = self._programs.execute([sys.executable, "-I", str(ACCESSIBILITY), *known], shell=False, alone=False)
        if done["returncode"] != 0:
            return Answer.error(500, done["error"])
        xml = zlib.decompressobj().decompress(base64.b64decode(done["output"]), LARGEST_TREE)
        return Answer.json({"AT": xml.decode(errors="replace")})

    def _terminal(self, parameters: Parameters) -> Answer:
        """Give what the terminal shows that has the keyboard, or else the newest."""
        desktop = self._session.desktop
        active = desktop.active_window()
        terminals = [window for window in desktop.windows() if window["class"] in TERMINALS]
        terminals.sort(key=lambda window: window["id"] == active)
        output = terminal.shown(terminals[-1]["pid"], self._programs) if terminals else self._described_terminal()
        return Answer.json({"output": output, "status": "success"})

    def _described_terminal(self) -> str | None:
        """Give what a terminal says of itself to assistive technology, as GNOME's does."""
        done = self._programs.execute([sys.executable, "-I", str(ACCESSIBILITY), "terminal"], shell=False, alone=False)
        return done["output"].rstrip() or None if done["returncode"] == 0 else None

    def _screen_size(self, parameters: Parameters) -> Answer:
        return Answer.json({"width": self._session.desktop.width, "height": self._session.desktop.height})

    def _window_size(self, parameters: Parameters) -> Answer:
        name = str(parameters["app_class_name"])
        for window in self._session.desktop.windows():
            if name.casefold() in (window["instance"].casefold(), window["class"].casefold()):
                return Answer.json({"width": window["width"], "height": window["height"]})
        return Answer.error(404, f"no window has the class or the instance {name}")

    def _desktop_path(self, parameters: Parameters) -> Answer:
        return Answer.json({"desktop_path": str(Path.home() / "Desktop")})

    def _list_directory(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "path")
        with walls.files_of(walls.USER):
            if not os.path.exists(path):
                return Answer.error(404, f"there is no {path}")
            return Answer.json({"directory_tree": _tree(path)})

    def _file(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "file_path")
        if place := self._judge.place(path):
            return Answer(place.read_bytes(), "application/octet-stream")
        with suppress(OSError), walls.files_of(walls.USER):
            if (content := _content(path)) is not None:
                return Answer(content, mimetypes.guess_type(path.name)[0] or "application/octet-stream")
        return Answer.error(404, f"File not found, or not readable, or larger than {LARGEST_FILE} bytes")

    def _wallpaper(self, _: Parameters) -> Answer:
        """Send the picture that is GNOME's setting; nothing here shows it."""
        done = self._programs.execute("gsettings get org.gnome.desktop.background picture-uri", shell=True)
        address = urllib.parse.unquote(done["output"].strip().strip("'"))
        return self._file({"file_path": address.removeprefix("file://")})

    def _execute(self, parameters: Parameters) -> Answer:
        """OSWorld's, and `timeout_s`: end the program then, with 504 if that is not the machine's fault."""
        timeout_s = float(str(parameters.get("timeout_s", programs.EXECUTE_TIMEOUT_S)))
        try:
            done = self._programs.execute(parameters["command"], shell=_flag(parameters, "shell"), timeout_s=timeout_s)
        except (HangingError, TooSlowError) as error:
            return Answer.error(503 if isinstance(error, TooSlowError) else 504, str(error))
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
        if window and self._session.desktop.find_window(window, strict=False, by_class=False) is None:
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
        with walls.files_of(walls.USER):
            is_there = os.path.isdir(directory)  # not Path's, which raises for a name that is too long
        if not is_there:
            return Answer.error(400, f"there is no directory {directory}: the script was not run")
        command = ["bash", "-c", f'cd -- "$1" || exit; shift\n{script}', "bash", str(directory)]
        done = self._programs.execute(command, shell=False, timeout_s=float(str(parameters.get("timeout", 30))))
        status = "success" if done["returncode"] == 0 else "error"
        return Answer.json({"status": status, **done, "output": done["output"] + done["error"], "error": ""})

    def _launch(self, parameters: Parameters) -> Answer:
        command = parameters["command"]
        self._programs.launch(command, shell=_flag(parameters, "shell"))
        return Answer.text(f"{command} launched successfully")

    def _upload(self, parameters: Parameters) -> Answer:
        path, content = _path(parameters, "file_path"), parameters["file_data"]
        write = self._judge.keep if self._judge.active else _write
        write(path, content if isinstance(content, bytes) else str(content).encode())
        return Answer.text("File Uploaded")

    def _download(self, parameters: Parameters) -> Answer:
        path = _path(parameters, "path")
        with urllib.request.urlopen(str(parameters["url"]), timeout=DOWNLOAD_TIMEOUT_S) as response:
            _write(path, response.read())
        return Answer.text("File downloaded successfully")

    def _open(self, parameters: Parameters) -> Answer:
        """OSWorld's, and `timeout_s`: say then which window is missing."""
        path, limit_s = _path(parameters, "path"), float(str(parameters.get("timeout_s", OPEN_LIMIT_S)))
        if place := self._judge.place(path):
            return self._compute(place)
        with walls.files_of(walls.USER):
            if not os.path.exists(path):
                return Answer.error(404, f"there is no {path}")
        self._programs.launch(["pcmanfm", str(path)], shell=False)
        if not _within(limit_s, lambda: self._find(path.name) is not None):
            return Answer.error(500, f"no window shows {path.name} after {limit_s:.0f} s")
        return Answer.text("File opened successfully")

    def _compute(self, place: Path) -> Answer:
        """Compute what a document of a check says today: on the screen the agent could type into it."""
        folder = self._judge.scratch()
        profile = f"-env:UserInstallation=file://{folder}/profile"
        convert = ["--headless", "--convert-to", place.suffix[1:], "--outdir", str(folder), str(place)]
        self._programs.execute(["soffice", profile, *convert], shell=False)
        if (content := _content(folder / place.name)) is not None:
            place.write_bytes(content)
        return Answer.text("File opened successfully")

    def _begin_judging(self, _: Parameters) -> Answer:
        """Let no program of the user touch what looks at it from now on; a reset ends that."""
        self._judge.begin()
        return Answer.json({"status": "success"})

    def _find(self, name: str) -> int | None:
        return self._session.desktop.find_window(name, strict=False, by_class=False)

    def _activate_window(self, parameters: Parameters) -> Answer:
        return self._with_window(parameters, self._session.desktop.activate)

    def _close_window(self, parameters: Parameters) -> Answer:
        return self._with_window(parameters, self._session.desktop.close)

    def _with_window(self, parameters: Parameters, act: Callable[[int], None]) -> Answer:
        name = str(parameters["window_name"])
        strict, by_class = _flag(parameters, "strict"), _flag(parameters, "by_class")
        window = self._session.desktop.find_window(name, strict=strict, by_class=by_class)
        if window is None:
            return Answer.error(404, f"there is no window {name!r}")
        act(window)
        return Answer.text("Window found")

    def _health(self, parameters: Parameters) -> Answer:
        """Ask the X server, because a server whose X server hangs still answers; then look what is used up."""
        self._session.desktop.pointer()
        if troubles := programs.troubles(self._refused_before):
            return Answer.error(409, "the desktop is of no use any more: " + ", ".join(troubles))
        size = {"width": self._session.desktop.width, "height": self._session.desktop.height}
        return Answer.json({**size, "warm": self._programs.warm})

    def _windows(self, parameters: Parameters) -> Answer:
        """List the windows, the oldest of them where all would be more than a client reads."""
        described, room = [], LARGEST_LIST
        for window in self._session.desktop.windows():
            room -= len(json.dumps(window)) + len(", ")
            if room < 0:
                break
            described.append(window)
        return Answer.json(described)

    def _action(self, parameters: Parameters) -> Answer:
        self._session.devices.play(parameters["events"])
        return Answer.json({"status": "success"})

    def _call(self, parameters: Parameters) -> Answer:
        """Run a function as the user. What is refused, fails or never ends is the caller's mistake, and no error."""
        name, arguments = parameters.get("function"), parameters.get("arguments")
        if refused := functions.refusal(name, arguments):
            return Answer.json({"done": False, "said": refused[:LONGEST_REASON]})
        command = functions.command_line(name, arguments)
        timeout_s = float(str(parameters.get("timeout_s", CALL_LIMIT_S)))
        try:
            done = self._programs.execute(command, shell=False, timeout_s=timeout_s)
        except HangingError:
            return Answer.json({"done": False, "said": f"{name} did not end within {timeout_s:g} s"})
        return Answer.json({"done": done["returncode"] == 0, "said": done["error"][-LONGEST_REASON:]})

    def _reset(self, parameters: Parameters) -> Answer:
        """End the session and every program, renew the files, start a session: as it was when this desktop was new."""
        self._session.end()
        self._judge.end()
        self._files.renew()
        self._session = Session(self._screen)
        desktop_shell.begin(self._session.desktop, self._programs)
        self._refused_before = programs.refused()
        left: list[str] = []

        def is_new() -> bool:
            left[:] = differences(self._when_new, fingerprint(self._session.desktop))
            return not left

        if not _within(RESET_LIMIT_S, is_new):
            return Answer.error(500, f"this desktop is not as it was when it was new: {'; '.join(left)[:1000]}")
        return Answer.json({"status": "success"})


def _within(limit_s: float, ready: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _content(path: Path) -> bytes | None:
    """Return the content of a file, None of what is no file or too large.

    A program may put a pipe in its place at any moment: it is opened once, without waiting, and looked at then.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_dev in KERNELS:
            return None
        content = file.read(LARGEST_FILE + 1)
    return content if len(content) <= LARGEST_FILE else None


def _write(path: Path, content: bytes) -> None:
    """Write a file of the user; a pipe in its place holds nothing up."""
    with walls.files_of(walls.USER):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK, 0o666)) as file:
            file.write(content)


def _flag(parameters: Parameters, name: str) -> bool:
    value = parameters.get(name, False)
    return value in (True, "true", "True", "1", 1)


def _path(parameters: Parameters, name: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(str(parameters[name]))))


def _tree(path: Path) -> dict:
    if path.is_symlink() or not path.is_dir():  # links could lead around in circles
        return {"type": "file", "name": path.name}
    try:
        children = [_tree(child) for child in sorted(path.iterdir())]
    except OSError as error:
        return {"error": str(error)}
    return {"type": "directory", "name": path.name, "children": children}
