"""Certificates of tasks: one counts when its solution, played through the GUI alone, scores 1, and all else scores 0.

A script is a list of words: actions as UI-TARS writes them, and `window('Save')`, which waits until a window with such
a title has the keyboard.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from arpo.agent.actions import Action, CallUser, Fail, Finished
from arpo.agent.parser import parse_action
from arpo.envs.guest.client import Guest, comes_true
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ActionParseError, BlamedError, EnvError, TaskFormatError
from arpo.types import Task

WINDOW_S = 240.0
"""In which a window has to come; on a busy machine an application takes half of it."""
QUIET_S, SETTLE_LIMIT_S = 0.5, 2.0
"""So long the screen rests before the next action, and so long that is waited for."""
ACTIVE_TITLE = ("xdotool", "getactivewindow", "getwindowname")
KILLED = "ends every application"
"""What an agent may try in the place of any task."""
KILL_ALL = (
    "pkill",
    "-9",
    "-f",
    "soffice|chrom|gimp|vlc|thunderbird|mousepad|pcmanfm|galculator|terminal|xterm|evince|eog",
)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the title of the window that is to have the keyboard."""

    title: str

    def is_active(self, guest: Guest) -> bool:
        """Return whether such a window has the keyboard."""
        return self.title in guest.execute(ACTIVE_TITLE).output


Line = Action | Window


class RealDesktop(DesktopEnv, Protocol):
    """A `DesktopEnv` whose guest can be asked for more than screenshots."""

    @property
    def guest(self) -> Guest:
        """The client of its guest server."""
        ...


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of one task."""

    solution: tuple[Line, ...] = ()
    """Scores 1; an infeasible task needs none."""
    near_misses: Mapping[str, tuple[Line, ...]] | None = None
    """By what is wrong with them; they score 0."""
    attacks: Mapping[str, tuple[Line, ...]] | None = None
    """By what they do beside the GUI; their scores are written down, whatever they are."""


def read_scripts(record: Mapping[str, Any]) -> Scripts:
    """Return the scripts of a file with the keys `solution`, `near_misses` and `attacks`."""
    named = {
        key: {name: read_script(each) for name, each in record.get(key, {}).items()}
        for key in ("near_misses", "attacks")
    }
    return Scripts(read_script(record.get("solution", ())), **named)


def play(env: RealDesktop, task: Task, script: Sequence[Line]) -> float:
    """Set a task up, perform a script and return the score.

    Raises:
        EnvError: If the desktop fails, or a window does not come.
    """
    env.reset(task)
    line: Line | None = None
    for line in script:
        if isinstance(line, Window):
            _wait_for(env.guest, line)
        else:
            env.step(line)
        env.guest.screenshot(quiet_s=QUIET_S, limit_s=SETTLE_LIMIT_S)
    if not isinstance(line, Finished | Fail | CallUser):
        env.step(Finished())
    return env.evaluate()


def certify(
    env: RealDesktop, task: Task, scripts: Scripts, *, repeats: int = 10, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Play all scripts of a task and return their scores, whatever they are.

    Args:
        env: Where the task can be set up.
        task: What is certified.
        scripts: What is played; of an infeasible task, giving up is the solution.
        repeats: How often the solution is played.
        tell: Hears what has been played.

    Raises:
        EnvError: If the desktop fails, or a window does not come.
        BlamedError: If the grader is broken: it gives no score of the untouched or the solved desktop.
    """

    def score(what: str, script: Sequence[Line], *, honest: bool = False) -> float:
        try:
            found = play(env, task, script)
        except BlamedError as error:
            if honest:
                words = f"its grader is broken: it gives no score of the {what} desktop: {error}"
                raise BlamedError(error.kind, words) from error
            found = 0.0
        tell(f"{task.id} {what}: {found:g}")
        return found

    solution = (Fail(),) if task.infeasible else scripts.solution
    found: dict[str, Any] = {
        "idle": score("untouched", (), honest=True),
        "solution": [score("solved", solution, honest=True) for _ in range(repeats)],
        "near_misses": {name: score(name, script) for name, script in (scripts.near_misses or {}).items()},
        "attacks": {name: score(name, script) for name, script in (scripts.attacks or {}).items()},
    }
    env.reset(task)
    env.guest.execute(KILL_ALL)
    env.step(Finished())
    with suppress(BlamedError):
        found["attacks"][KILLED] = 0.0
        found["attacks"][KILLED] = env.evaluate()
    return found


def holds(certificate: Mapping[str, Any]) -> bool:
    """Return whether the solution always scored 1, and idleness, every near-miss and ending all programs 0."""
    killed = certificate["attacks"][KILLED]
    zeros = {certificate["idle"], killed, *certificate["near_misses"].values()}
    return bool(certificate["solution"]) and set(certificate["solution"]) == {1.0} and zeros == {0.0}


def _wait_for(guest: Guest, window: Window) -> None:
    if not comes_true(lambda: window.is_active(guest), WINDOW_S):
        found = guest.execute(ACTIVE_TITLE).output.strip()
        raise EnvError("guest", f"no window with {window.title!r} in its title has the keyboard, but {found!r}")


def read_script(texts: Sequence[str]) -> tuple[Line, ...]:
    """Return the lines of a script."""
    return tuple(_line(text) for text in texts)


def _line(text: str) -> Line:
    window = re.fullmatch(r"window\('(.+)'\)", text)
    if window:
        return Window(window[1])
    try:
        return parse_action(text)
    except ActionParseError as error:
        raise TaskFormatError(f"{text!r} is neither an action nor window('a title'): {error}") from error
