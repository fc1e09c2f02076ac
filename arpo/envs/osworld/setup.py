"""The set-up steps that OSWorld's own machine performs beside those of every guest: Chrome, downloads, history."""

import shutil
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from arpo.envs.guest.client import Command, Guest, poll_until
from arpo.envs.guest.setup import Screen, TaskSetup
from arpo.envs.guest.tasks import Step, as_list
from arpo.envs.osworld.chrome import ChromeTabs
from arpo.envs.osworld.files import EMPTY_HISTORY, EMPTY_HISTORY_URL, FileCache
from arpo.envs.protocol import Execution
from arpo.errors import EnvError

HISTORY_PATH = ".config/google-chrome/Default/History"
"""In the guest, below the home directory."""

EPOCH = datetime(1601, 1, 1, tzinfo=UTC)
"""Chrome counts microseconds from here."""
LATE_S = 120.0
"""In which a window may still come that the guest no longer waits for: LibreOffice may take a minute."""
LINK_TRANSITION = 805306368
"""The cause of a visit, as Chrome writes it for a link that was followed."""


class OSWorldSetup(TaskSetup):
    """An interpreter of all steps of one of OSWorld's tasks; Chrome need not run before a step that speaks to it."""

    def __init__(self, guest: Guest, task_id: str, screen: Screen, *, chrome: ChromeTabs, files: FileCache) -> None:
        super().__init__(guest, task_id, screen)
        self._chrome, self._files = chrome, files
        self.saved: dict[str, bytes] = {}
        """What steps save for the grader, by name."""
        self._scripts: dict[str, bytes] = {}

    def _execute(self, command: Command, shell: bool = False, stdout: str = "", stderr: str = "") -> Execution:
        """Run a command, and keep what it wrote in files of these names."""
        done = super()._execute(command, shell)
        for name, text in ((stdout, done.output), (stderr, done.error)):
            if name:
                self.saved[name] = text.encode()
        return done

    def _download(self, files: Sequence[Mapping[str, str]]) -> None:
        for file in files:
            content = self._files.fetch(file["url"], self._task_id, file["path"]).read_bytes()
            if file["path"].endswith((".sh", ".py")):
                self._scripts[file["path"]] = content
            self._guest.upload(file["path"], content)

    def put_scripts_in_again(self, evaluator: Mapping[str, Any]) -> None:
        """Upload scripts that the set-up has uploaded and a check runs: the agent has had them since."""
        commands = str([getter.get("command") for getter in as_list(evaluator.get("result")) if getter])
        for path, content in self._scripts.items():
            if Path(path).name in commands:
                self._guest.upload(path, content)

    def _open(self, path: str) -> None:
        """Open a file, and look for its window longer than the guest does."""
        try:
            self._guest.open_file(path)
        except EnvError as error:
            if "no window shows" not in str(error):
                raise
            if not poll_until(lambda: Path(path).name in " ".join(self._guest.titles()), LATE_S):
                raise

    def _upload_file(self, files: Sequence[Mapping[str, str]]) -> None:
        for file in files:
            try:
                content = Path(file["local_path"]).read_bytes()
            except OSError as error:
                raise EnvError("reset", f"the file to upload cannot be read: {error}") from error
            self._guest.upload(file["path"], content)

    def _chrome_open_tabs(self, urls_to_open: Sequence[str]) -> None:
        self._chrome.open(urls_to_open)

    def _chrome_close_tabs(self, urls_to_close: Sequence[str]) -> None:
        self._chrome.close(urls_to_close)

    def _update_browse_history(self, history: Sequence[Mapping[str, Any]]) -> None:
        with tempfile.TemporaryDirectory(prefix="osworld-") as directory:
            database = Path(directory, "history.sqlite")
            shutil.copyfile(self._files.fetch(EMPTY_HISTORY_URL, self._task_id, EMPTY_HISTORY), database)
            try:
                add_visits(database, history, now=datetime.now(UTC))
            except sqlite3.Error as error:
                raise EnvError(
                    "reset", f"{EMPTY_HISTORY}, as it was downloaded, is no history of Chrome: {error}"
                ) from error
            content = database.read_bytes()
        home = self._guest.execute("echo $HOME", shell=True).output.strip()
        self._guest.upload(f"{home}/{HISTORY_PATH}", content)

    STEPS: ClassVar[Mapping[str, Step]] = {
        **TaskSetup.STEPS,
        "chrome_close_tabs": _chrome_close_tabs,
        "chrome_open_tabs": _chrome_open_tabs,
        "command": _execute,
        "download": _download,
        "execute": _execute,
        "open": _open,
        "update_browse_history": _update_browse_history,
        "upload_file": _upload_file,
    }


def add_visits(database: Path, history: Sequence[Mapping[str, Any]], *, now: datetime) -> None:
    """Write visits, so many seconds before `now` in UTC, into a history of Chrome."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for page in history:
            visited = now - timedelta(seconds=page["visit_time_from_now_in_seconds"])
            moment = (visited - EPOCH) // timedelta(microseconds=1)
            row = connection.execute(
                "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) "
                "VALUES (?, ?, 1, 0, ?, 0)",
                (page["url"], page["title"], moment),
            )
            connection.execute(
                "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                "VALUES (?, ?, 0, ?, 0, 0)",
                (row.lastrowid, moment, LINK_TRANSITION),
            )
