"""The client of a guest server: OSWorld's HTTP routes and our faster ones, with deadlines and typed errors.

A thought never travels: what goes to the guest is events of known names, programs that a task file names, and files.
"""

import operator
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import tenacity

from arpo.agent.actions import Scalar
from arpo.bounds import NotNegative, Positive, checked
from arpo.envs.answers import decoded
from arpo.envs.guest.input import Event
from arpo.envs.guest.transport import CONNECT_TIMEOUT_S, LARGEST_ANSWER, Answer, BrokenConnectionError, Transport
from arpo.envs.protocol import Execution
from arpo.errors import ConfigError, DesktopDestroyedError, EnvError

Command = str | Sequence[str]

EXECUTION_GRACE_S = 3.0
"""So long before its deadline our guest server ends a program and says so."""
GET_ATTEMPTS, GET_PAUSE_S = 2, 0.05
POLL_S, LONGEST_POLL_S = 0.02, 0.5
POLL_SHARE = 0.1
"""Of the time waited so far: where many guests start at once, polls take cores from them."""
ALIVE_POLL_S = 0.25
"""The engine takes more time to say whether a guest runs than the guest to say whether it is healthy."""
LARGEST_TEXT = 4 * 2**20
"""Bytes of an answer in JSON, such as what a program wrote."""
LARGEST_LIST = 2**20
"""Bytes of a list in JSON, whose records take eight times as much memory."""
LARGEST_FILE = 32 * 2**20
AGENT_S = 20.0
"""For a program that a foreign agent runs."""


@checked
@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds after which a desktop counts as broken, by what is waited for. The defaults are those of our own.

    They end before those of a pool, whose error could not say what was slow.
    """

    start_s: Positive = 30.0
    """A container, until its guest is healthy."""
    call_s: Positive = 5.0
    """A request that waits for nothing."""
    program_s: Positive = 15.0
    """A program of a task or a check, to its end."""
    open_s: Positive = 30.0
    """A file that its application opens."""
    window_s: NotNegative = 20.0
    """A window that is to come; 0 where the guest does not say which there are, and none is waited for."""


OURS = Deadlines()


class HangingProgramError(EnvError):
    """A program of the guest that was ended because it waited for what never came, or never stopped."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The end of a call of a function: whether it was done, and otherwise why not."""

    done: bool
    said: str = ""


@dataclass(frozen=True, slots=True)
class _Signature:
    name: str
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Window:
    title: str


class Guest:
    """A client of one guest server.

    A call raises `EnvError` of kind `guest` if it is not done at its deadline, or its answer is too long, packed or of
    another type than it must be, and `DesktopDestroyedError` once the programs of the desktop have made it useless.
    Only what changes nothing (GET) is tried a second time, within the same deadline.
    """

    def __init__(self, address: str, secret: str = "", deadlines: Deadlines = OURS) -> None:
        self.deadlines = deadlines
        self._transport = Transport(address, secret)
        self._address = address

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def screenshot(self, *, quiet_s: float = 0.0, limit_s: float = 0.0, most_bytes: int = LARGEST_ANSWER) -> bytes:
        """Return the screen as PNG, unchecked.

        Our guests wait until it has not changed for `quiet_s`, but no longer than `limit_s`; 0: take it as it is.
        """
        wait = {"quiet_s": str(quiet_s), "limit_s": str(limit_s)} if quiet_s > 0 else {}
        return self._get("/screenshot", wait, timeout_s=self.deadlines.call_s + limit_s, most_bytes=most_bytes)

    def check_health(self) -> None:
        """Take a screenshot and ask what is wrong."""
        self._get("/health")

    def titles(self) -> list[str]:
        """Return the titles of the windows, oldest first."""
        content = self._get("/windows", most_bytes=LARGEST_LIST)
        return [window.title for window in decoded(content, list[_Window], "/windows")]

    def wait_for(self, ready: Callable[[], bool], what: str) -> None:
        """Poll a healthy guest until its windows are `ready`."""
        limit_s = self.deadlines.window_s
        if not poll_until(ready, limit_s):
            raise EnvError("guest", f"{what} did not come within {limit_s:g} s")

    def greet(self) -> None:
        """Ask our own guest server once, for a moment, whether it is healthy."""
        self._call("GET", "/health", timeout_s=CONNECT_TIMEOUT_S)

    def wait_until_healthy(self, is_running: Callable[[], bool], probe: "Callable[[Guest], object]" = greet) -> None:
        """Wait until `probe` raises no `EnvError`, as long as the guest `is_running`."""
        limit_s, began = self.deadlines.start_s, time.monotonic()
        ask_engine_at = began
        while True:
            try:
                probe(self)
            except EnvError as error:
                now = time.monotonic()
                if now > began + limit_s:
                    raise EnvError("guest", f"no healthy guest within {limit_s:g} s: {error}") from error
                if now >= ask_engine_at:
                    if not is_running():
                        raise EnvError("guest", "the guest ended while it started") from error
                    ask_engine_at = now + ALIVE_POLL_S
            else:
                return
            time.sleep(min(max(POLL_S, POLL_SHARE * (now - began)), LONGEST_POLL_S))

    def play(self, events: Sequence[Event], *, duration_s: float = 0.0) -> None:
        """Play mouse and keyboard events that take `duration_s`."""
        if events:
            self._post("/action", {"events": events}, timeout_s=self.deadlines.call_s + duration_s)

    def execute(self, command: Command, *, shell: bool = False, timeout_s: float | None = None) -> Execution:
        """Run a program to its end.

        Raises:
            HangingProgramError: If our own guest server ended it before the deadline, and not for want of a core.
        """
        timeout_s = timeout_s or self.deadlines.program_s
        body = {"command": command, "shell": shell, "timeout_s": _limit_of_guest(timeout_s)}
        return decoded(self._post("/setup/execute", body, timeout_s=timeout_s), Execution, "/setup/execute")

    def functions(self) -> dict[str, dict[str, str]]:
        """Return the functions that an agent may call, by name, with the types of parameters; none of an old guest."""
        answer = self._ask("GET", "/functions", most_bytes=LARGEST_LIST)
        if answer.status == HTTPStatus.NOT_FOUND:
            return {}
        content = self._content(answer, "GET", "/functions")
        return {each.name: each.parameters for each in decoded(content, list[_Signature], "/functions")}

    def call(self, function: str, arguments: Mapping[str, Scalar]) -> CallResult:
        """Call a function as the user of the desktop; what the guest refuses, or ends, was not done."""
        timeout_s = self.deadlines.program_s
        body = {"function": function, "arguments": dict(arguments), "timeout_s": _limit_of_guest(timeout_s)}
        return decoded(self._post("/call", body, timeout_s=timeout_s), CallResult, "/call")

    def launch(self, command: Command, *, shell: bool = False) -> None:
        """Start a program and leave it running."""
        self._post("/setup/launch", {"command": command, "shell": shell})

    def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        self._call("POST", "/setup/upload", data={"file_path": path}, files={"file_data": (path, content)})

    def file(self, path: str) -> bytes | None:
        """Return the content of a file, None where there is none."""
        answer = self._ask("POST", "/file", most_bytes=LARGEST_FILE, data={"file_path": path})
        return None if answer.status == HTTPStatus.NOT_FOUND else self._content(answer, "POST", "/file")

    def open_file(self, path: str) -> None:
        """Open a file with the application that it belongs to, and wait for its window."""
        limit_s = self.deadlines.open_s
        self._post("/setup/open_file", {"path": path, "timeout_s": _limit_of_guest(limit_s)}, timeout_s=limit_s)

    def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Raise a window and give it the keyboard."""
        self._post("/setup/activate_window", {"window_name": name, "strict": strict, "by_class": by_class})

    def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Ask a window to close."""
        self._post("/setup/close_window", {"window_name": name, "strict": strict, "by_class": by_class})

    def begin_judging(self) -> None:
        """Run programs from now on, until the reset, where no program of the agent can touch them."""
        answer = self._ask("POST", "/judge", most_bytes=LARGEST_LIST, json={})
        if answer.status == HTTPStatus.NOT_FOUND:
            raise ConfigError(
                "the image of this desktop is older than judging in it: docker/build_image.sh builds it again"
            )
        self._content(answer, "POST", "/judge")

    def tunnel(self, program: str) -> socket.socket:
        """Return a connection to a program of the desktop, such as `vlc`, if that itself answers at its port."""
        return self._transport.tunnel(f"/tunnel/{program}", timeout_s=self.deadlines.call_s)

    def reset(self) -> None:
        """End every program, renew the files and let go of every key."""
        self._post("/setup/reset", {}, timeout_s=2 * self.deadlines.call_s)

    def _get(
        self,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        timeout_s: float | None = None,
        most_bytes: int = LARGEST_ANSWER,
    ) -> bytes:
        deadline = time.monotonic() + (timeout_s or self.deadlines.call_s)
        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(BrokenConnectionError),
            stop=tenacity.stop_after_attempt(GET_ATTEMPTS),
            wait=tenacity.wait_fixed(GET_PAUSE_S),
            reraise=True,
        )
        return again(
            lambda: self._call(
                "GET", path, timeout_s=deadline - time.monotonic(), most_bytes=most_bytes, params=parameters
            )
        )

    def _post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> bytes:
        return self._call("POST", path, timeout_s=timeout_s, most_bytes=LARGEST_TEXT, json=body)

    def _call(self, method: str, path: str, **request: Any) -> bytes:
        return self._content(self._ask(method, path, **request), method, path)

    def _ask(self, method: str, path: str, *, timeout_s: float | None = None, **request: Any) -> Answer:
        return self._transport.ask(method, path, timeout_s=timeout_s or self.deadlines.call_s, **request)

    def _content(self, answer: Answer, method: str, path: str) -> bytes:
        if answer.status != HTTPStatus.OK:
            said = answer.content[:500].decode(errors="replace")
            if answer.status == HTTPStatus.CONFLICT:
                raise DesktopDestroyedError(f"{method} {path}: {said}")
            if answer.status == HTTPStatus.GATEWAY_TIMEOUT:
                raise HangingProgramError("guest", f"{method} {path}: {said}")
            raise EnvError("guest", f"{method} {path} of {self._address} gave {answer.status}: {said}")
        return answer.content


def _limit_of_guest(timeout_s: float) -> float:
    return max(timeout_s - EXECUTION_GRACE_S, timeout_s / 2)


def run_of_agent(guest: Guest, command: Command, *, shell: bool) -> Execution:
    """Run a program for a foreign agent: what goes wrong is the program's doing, where the guest still answers."""
    try:
        return guest.execute(command, shell=shell, timeout_s=AGENT_S)
    except EnvError as error:
        guest.screenshot()
        return Execution("", str(error), 1)


def poll_until(condition: Callable[[], bool], limit_s: float, poll_s: float = POLL_S) -> bool:
    """Poll a condition until it holds or time is up; return whether it holds."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_result(operator.not_),
        stop=tenacity.stop_after_delay(limit_s),
        wait=tenacity.wait_fixed(poll_s),
        retry_error_callback=lambda _: False,
    )(condition)
