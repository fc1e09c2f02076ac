"""The set-up steps that OSWorld's own machine performs beside those of every guest: Chrome, downloads, history."""

import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from arpo.envs.guest.client import Command, Guest
from arpo.envs.guest.setup import Screen, TaskSetup
from arpo.envs.guest.tasks import Step
from arpo.envs.osworld.chrome import ChromeTabs
from arpo.envs.osworld.files import FileCache
from arpo.envs.osworld.history import GUEST_PATH, TEMPLATE_URL, add_visits
from arpo.errors import EnvError


class OSWorldSetup(TaskSetup):
    """An interpreter of all steps of one of OSWorld's tasks.

    Args:
        guest: Where the steps are performed.
        task_id: The task whose downloads they use.
        screen: What commands may name.
        chrome: The Chrome of the guest; it need not run before a step that speaks to it.
        files: Where downloads are kept.
        directory: Gets what steps save for the grader.
    """

    def __init__(
        self, guest: Guest, task_id: str, screen: Screen, *, chrome: ChromeTabs, files: FileCache, directory: Path
    ) -> None:
        super().__init__(guest, task_id, screen)
        self._chrome = chrome
        self._files = files
        self._directory = directory

    def _execute(self, command: Command, shell: bool = False, stdout: str = "", stderr: str = "") -> None:
        """Run a command, and keep what it wrote in files of these names."""
        done = self._run(command, shell)
        for name, text in ((stdout, done.output), (stderr, done.error)):
            if name:
                (self._directory / name).write_text(text)

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

    STEPS: ClassVar[Mapping[str, Step]] = {
        **TaskSetup.STEPS,
        "chrome_close_tabs": _chrome_close_tabs,
        "chrome_open_tabs": _chrome_open_tabs,
        "command": _execute,
        "download": _download,
        "execute": _execute,
        "update_browse_history": _update_browse_history,
        "upload_file": _upload_file,
    }
