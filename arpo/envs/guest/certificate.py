"""Certificates of tasks: one counts when its solution, played through the GUI alone, scores 1, and all else scores 0.

A script is a list of texts: actions as UI-TARS writes them, and `window('Save')`, which waits until a window with such
a title has the keyboard.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from arpo.agent.actions import Action, Fail, Finished, Terminal
from arpo.agent.ui_tars import parse_action
from arpo.envs.guest.client import Guest, poll_until
from arpo.envs.protocol import DesktopEnv
from arpo.errors import ActionParseError, BlamedError, EnvError, TaskFormatError
from arpo.types import Task

log = logging.getLogger(__name__)

WINDOW_S = 240.0
"""The time in which a window has to come; on a busy machine an application takes half of it."""
QUIET_S, SETTLE_LIMIT_S = 0.5, 2.0
"""The rest of the screen before the next action, and the longest wait for it."""
ACTIVE_TITLE = ("xdotool", "getactivewindow", "getwindowname")
KILLED = "ends every application"
APPLICATIONS = "soffice|chrom|gimp|vlc|thunderbird|mousepad|pcmanfm|galculator|terminal|xterm|evince|eog"


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the title of the window that is to have the keyboard."""

    title: str

    def is_active(self, guest: Guest) -> bool:
        """Return whether such a window has the keyboard."""
        return self.title in guest.execute(ACTIVE_TITLE).output


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is run in the guest, past the GUI."""

    arguments: tuple[str, ...]


KILL_ALL = Command(("pkill", "-9", "-f", APPLICATIONS))
Line = Action | Window
Script = Sequence[Line | Command]


class RealDesktop(DesktopEnv, Protocol):
    """A `DesktopEnv` whose guest can be asked for more than screenshots."""

    @property
    def guest(self) -> Guest:
        """The client of its guest server."""


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


def play(env: RealDesktop, task: Task, script: Script) -> float:
    """Set a task up, perform a script and return the score; a window that does not come is an `EnvError`."""
    env.reset(task)
    line: Line | Command | None = None
    for line in script:
        if isinstance(line, Window):
            if not poll_until(partial(line.is_active, env.guest), WINDOW_S):
                found = env.guest.execute(ACTIVE_TITLE).output.strip()
                raise EnvError("guest", f"no window with {line.title!r} in its title has the keyboard, but {found!r}")
        elif isinstance(line, Command):
            env.guest.execute(line.arguments)
        else:
            env.step(line)
        env.guest.screenshot(quiet_s=QUIET_S, limit_s=SETTLE_LIMIT_S)
    if not isinstance(line, Terminal):
        env.step(Finished())
    return env.evaluate()


def certify(
    perform: Callable[[Task, Script], float], task: Task, scripts: Scripts, *, repeats: int = 10
) -> dict[str, Any]:
    """Play all scripts of a task and return their scores, whatever they are; giving up solves an infeasible one.

    Args:
        perform: Plays a script on a desktop, as `play` does, and returns the score.
        repeats: How often the solution is played.

    Raises:
        BlamedError: If the grader is broken: it gives no score of the untouched or the solved desktop.
    """

    def score(name: str, script: Script, *, is_honest: bool = False) -> float:
        try:
            found = perform(task, script)
        except BlamedError as error:
            if is_honest:
                reason = f"its grader is broken: it gives no score of the {name} desktop: {error}"
                raise BlamedError(error.kind, reason) from error
            found = 0.0
        log.debug("%s %s: %g", task.id, name, found)
        return found

    solution = (Fail(),) if task.infeasible else scripts.solution
    attacks: dict[str, Script] = {**(scripts.attacks or {}), KILLED: (KILL_ALL,)}
    return {
        "idle": score("untouched", (), is_honest=True),
        "solution": [score("solved", solution, is_honest=True) for _ in range(repeats)],
        "near_misses": {name: score(name, script) for name, script in (scripts.near_misses or {}).items()},
        "attacks": {name: score(name, script) for name, script in attacks.items()},
    }


def holds(certificate: Mapping[str, Any]) -> bool:
    """Return whether the solution always scored 1, and idleness, every near-miss and ending all programs 0."""
    killed = certificate["attacks"][KILLED]
    zeros = {certificate["idle"], killed, *certificate["near_misses"].values()}
    return bool(certificate["solution"]) and set(certificate["solution"]) == {1.0} and zeros == {0.0}
