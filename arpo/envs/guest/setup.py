"""The one interpreter of OSWorld's set-up steps, which `config` and `postconfig` of a task file list."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from arpo.envs.guest.client import Command, Guest
from arpo.envs.guest.tasks import Step
from arpo.envs.guest.transport import NoAnswerError
from arpo.envs.protocol import Execution
from arpo.errors import EnvError, quoted

log = logging.getLogger(__name__)

QUIET_S, QUIET_LIMIT_S = 0.3, 5.0
"""So long a desktop rests after a step that sleeps and before one that types, and so long that is waited for: a film
that plays never rests."""


@dataclass(frozen=True, slots=True)
class Screen:
    """The values that a task's commands may name: `{SCREEN_WIDTH}` and the like in pixels, and `{CLIENT_PASSWORD}`."""

    width: int
    height: int
    password: str = ""
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
    """An interpreter of the steps of one task, which every guest can perform; a subclass adds its own to `STEPS`.

    A method is the schema of its step: the parameters of the method are those of the step in a task file, and the
    ones without a default must be there.
    """

    def __init__(self, guest: Guest, task_id: str, screen: Screen) -> None:
        self._guest, self._task_id, self._screen = guest, task_id, screen
        self._prepares = False

    def prepare(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Perform the steps of `config`, in order: an episode begins in no other state than the task describes."""
        self._prepares = True
        for index, step in enumerate(steps):
            try:
                self._perform(step)
            except EnvError as error:
                raise EnvError(
                    error.kind, f"task {self._task_id}, set-up step {index} ({step['type']}): {error}"
                ) from error

    def conclude(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Perform the steps of `postconfig`, in order, before grading.

        A refusal of the guest may be the doing of the agent, which closed the window that a step wants: it is logged,
        and the grader judges what there is, as in OSWorld. A step without an answer may be the one that saves the
        agent's work, and a guest that answers the grader again would be judged without it.

        Raises:
            EnvError: If the connection breaks, a deadline passes or an answer is too long or packed, or a file cannot
                be downloaded.
        """
        self._prepares = False
        for index, step in enumerate(steps):
            try:
                self._perform(step)
            except EnvError as error:
                if step["type"] == "download" or isinstance(error, NoAnswerError):
                    raise
                log.info("task %s, step %d before grading (%s): %s", self._task_id, index, step["type"], error)

    def _perform(self, step: Mapping[str, Any]) -> None:
        self.STEPS[step["type"]](self, **step["parameters"])

    def _execute(self, command: Command, shell: bool = False) -> Execution:
        """Run a command to its end.

        One that ran has not failed, whatever its exit status: OSWorld's own client looks at no exit status, and its
        task files have commands that fail.
        """
        if "pyautogui" in str(command):
            self._rest()
        done = self._guest.execute(self._screen.fill(command), shell=shell)
        if done.returncode != 0:
            said = (done.error or done.output).strip()
            log.info("task %s: command %r ended with %d: %s", self._task_id, command, done.returncode, quoted(said))
        return done

    def _launch(self, command: Command, shell: bool = False) -> None:
        if isinstance(command, str) and not shell:
            command = command.split()
        self._guest.launch(self._screen.fill(command), shell=shell)

    def _open(self, path: str) -> None:
        self._guest.open_file(path)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._rest()

    def _rest(self) -> None:
        """Wait until the desktop rests, where the guest can say that.

        The times in task files are those of an idle machine. On a busy one a step types before its window is there.
        """
        if self._guest.deadlines.window_s:
            self._guest.screenshot(quiet_s=QUIET_S, limit_s=QUIET_LIMIT_S)

    def _activate_window(self, window_name: str, strict: bool = False, by_class: bool = False) -> None:
        """Bring a window to the front, when it has come: a step before may just have launched it.

        Before grading there is no wait: a window that is not there has been closed.
        """
        if self._prepares and self._guest.deadlines.window_s:
            self._guest.wait_for(lambda: window_name in " ".join(self._guest.titles()), window_name)
        self._guest.activate_window(window_name, strict=strict, by_class=by_class)

    def _close_window(self, window_name: str, strict: bool = False, by_class: bool = False) -> None:
        self._guest.close_window(window_name, strict=strict, by_class=by_class)

    STEPS: ClassVar[Mapping[str, Step]] = {
        "activate_window": _activate_window,
        "close_window": _close_window,
        "command": _execute,
        "execute": _execute,
        "launch": _launch,
        "open": _open,
        "sleep": _sleep,
    }
