"""The set-up steps of OSWorld's task files, performed on a guest: what `config` and `postconfig` ask for."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import httpx

from arpo.envs.osworld.chrome import ChromeTabs
from arpo.envs.osworld.files import FileCache
from arpo.envs.osworld.history import GUEST_PATH, TEMPLATE_URL, add_visits
from arpo.errors import EnvError

log = logging.getLogger(__name__)

Command = str | Sequence[str]


class CommandResult(Protocol):
    """What a command in the guest left."""

    @property
    def output(self) -> str:
        """Its standard output."""
        ...

    @property
    def error(self) -> str:
        """Its standard error."""
        ...


class SetupGuest(Protocol):
    """What a set-up asks of a guest. Every method raises `EnvError` when the guest does not do it."""

    def execute(self, command: Command, *, shell: bool = False) -> CommandResult:
        """Run a command to its end."""
        ...

    def launch(self, command: Command, *, shell: bool = False) -> None:
        """Start a program."""
        ...

    def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        ...

    def open_file(self, path: str) -> None:
        """Open a file with its application."""
        ...

    def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Bring a window to the front."""
        ...

    def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Close a window."""
        ...


@dataclass(frozen=True, slots=True)
class Screen:
    """What a task's commands may name: `{SCREEN_WIDTH}` and the like, and `{CLIENT_PASSWORD}`."""

    width: int
    """Pixels."""
    height: int
    """Pixels."""
    password: str
    """Of the guest's user, whom commands make an administrator."""

    def fill(self, command: Command) -> Command:
        """Replace the names in a command."""
        if not isinstance(command, str):
            return [str(self.fill(part)) for part in command]
        values = {
            "{CLIENT_PASSWORD}": self.password,
            "{SCREEN_WIDTH_HALF}": self.width // 2,
            "{SCREEN_HEIGHT_HALF}": self.height // 2,
            "{SCREEN_WIDTH}": self.width,
            "{SCREEN_HEIGHT}": self.height,
        }
        for name, value in values.items():
            command = command.replace(name, str(value))
        return command


class TaskSetup:
    """Performs the steps of one task.

    Args:
        guest: Where.
        chrome: The Chrome of the guest; it need not run before a step that speaks to it.
        files: Where downloads are kept.
        task_id: Whose downloads.
        directory: Gets what steps save for the grader.
        screen: What commands may name.
    """

    def __init__(
        self, guest: SetupGuest, chrome: ChromeTabs, files: FileCache, *, task_id: str, directory: Path, screen: Screen
    ) -> None:
        self._guest = guest
        self._chrome = chrome
        self._files = files
        self._task_id = task_id
        self._directory = directory
        self._screen = screen
        self._steps: Mapping[str, Callable[..., None]] = {
            "activate_window": self._activate_window,
            "chrome_close_tabs": self._chrome_close_tabs,
            "chrome_open_tabs": self._chrome_open_tabs,
            "close_window": self._close_window,
            "command": self._execute,
            "download": self._download,
            "execute": self._execute,
            "launch": self._launch,
            "open": self._open,
            "sleep": self._sleep,
            "update_browse_history": self._update_browse_history,
            "upload_file": self._upload_file,
        }

    def prepare(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Perform the steps of `config`, in order.

        Raises:
            EnvError: If one fails: an episode must not begin in another state than the task describes.
        """
        for index, step in enumerate(steps):
            try:
                self._perform(step)
            except EnvError as error:
                raise EnvError(
                    error.kind, f"task {self._task_id}, set-up step {index} ({step['type']}): {error}"
                ) from error

    def conclude(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Perform the steps of `postconfig`, in order, before grading.

        What a guest refuses here may be the agent's doing, who closed the window that a step wants: it is logged, and
        the grader judges what there is, as in OSWorld. A step that nobody answered may be the one that saves the
        agent's work, and a guest that answers the grader again would be judged without it.

        Raises:
            EnvError: If the connection breaks or a deadline passes, or a file cannot be downloaded.
        """
        for index, step in enumerate(steps):
            try:
                self._perform(step)
            except EnvError as error:
                if step["type"] == "download" or isinstance(error.__cause__, httpx.TransportError):
                    raise
                log.info("task %s, step %d before grading (%s): %s", self._task_id, index, step["type"], error)

    def _perform(self, step: Mapping[str, Any]) -> None:
        self._steps[step["type"]](**step["parameters"])

    def _download(self, files: Sequence[Mapping[str, str]]) -> None:
        for file in files:
            content = self._files.fetch(file["url"], self._task_id, file["path"]).read_bytes()
            self._guest.upload(file["path"], content)

    def _upload_file(self, files: Sequence[Mapping[str, str]]) -> None:
        for file in files:
            try:
                content = Path(file["local_path"]).read_bytes()
            except OSError as error:
                raise EnvError("reset", f"the file to upload cannot be read: {error}") from error
            self._guest.upload(file["path"], content)

    def _execute(self, command: Command, stdout: str = "", stderr: str = "", shell: bool = False) -> None:
        result = self._guest.execute(self._screen.fill(command), shell=shell)
        for name, text in ((stdout, result.output), (stderr, result.error)):
            if name:
                (self._directory / name).write_text(text)

    def _launch(self, command: Command, shell: bool = False) -> None:
        if isinstance(command, str) and not shell:
            command = command.split()
        self._guest.launch(self._screen.fill(command), shell=shell)

    def _open(self, path: str) -> None:
        self._guest.open_file(path)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _activate_window(self, window_name: str, strict: bool = False, by_class: bool = False) -> None:
        self._guest.activate_window(window_name, strict=strict, by_class=by_class)

    def _close_window(self, window_name: str, strict: bool = False, by_class: bool = False) -> None:
        self._guest.close_window(window_name, strict=strict, by_class=by_class)

    def _chrome_open_tabs(self, urls_to_open: Sequence[str]) -> None:
        self._chrome.open(urls_to_open)

    def _chrome_close_tabs(self, urls_to_close: Sequence[str]) -> None:
        self._chrome.close(urls_to_close)

    def _update_browse_history(self, history: Sequence[Mapping[str, Any]]) -> None:
        database = self._directory / "history.sqlite"
        shutil.copyfile(self._files.fetch(TEMPLATE_URL, self._task_id, "history_empty.sqlite"), database)
        add_visits(database, history, now=datetime.now())
        home = self._guest.execute("echo $HOME", shell=True).output.strip()
        self._guest.upload(f"{home}/{GUEST_PATH}", database.read_bytes())
