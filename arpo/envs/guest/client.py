"""The client of a guest server: OSWorld's HTTP routes and our faster ones, with deadlines and typed errors.

A thought never travels: what goes to the guest is events of known names, programs that a task file names, and files.
"""

import itertools
import json
import operator
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httpx
import tenacity

from arpo.envs.guest.input import Event
from arpo.errors import EnvError

Command = str | Sequence[str]

CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 5.0
PATIENCE_S = 30.0
PATIENCE_FACTOR = 3
"""A program or a window gets so many times the deadline of other calls, and never less than PATIENCE_S."""
LONGEST_EXECUTION_S = 90.0
"""Less than the 120 s after which OSWorld's server ends a program and calls that an answer."""
GET_ATTEMPTS = 2
GET_PAUSE_S = 0.05
POLL_S = 0.02
LONGEST_POLL_S = 0.5
POLL_SHARE = 0.1
"""Of the time waited so far: where many guests start at once, those who ask how far they are take cores from them."""
ALIVE_POLL_S = 0.25
"""The engine takes more time to say whether a guest runs than the guest to say whether it is healthy."""
LARGEST_ANSWER = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Execution:
    """The end of a program of the guest."""

    output: str
    error: str
    returncode: int


def _is_passing(error: BaseException) -> bool:
    """Return whether a failed request may go well in a moment: the connection broke, and nobody kept us waiting."""
    return isinstance(error.__cause__, httpx.TransportError) and not isinstance(
        error.__cause__, httpx.TimeoutException
    )


class Guest:
    """A client of one guest server. A call that is not done at its deadline raises `EnvError` of kind `guest`.

    It does so at the deadline, but where the headers of an answer drip: when they have come.

    Only what changes nothing (GET) is tried a second time.

    Args:
        address: `http://host:port`.
        secret: What the guest demands; empty for a plain OSWorld guest.
        timeout_s: Deadline of a call that does not say its own.

    Attributes:
        patience_s: Deadline of calls that wait for a program or its window.
    """

    def __init__(self, address: str, secret: str = "", timeout_s: float = CALL_TIMEOUT_S) -> None:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        # no proxy of this machine's environment: the guest is on the loopback interface; and plain HTTP needs none of
        # the certificates that httpx would take 28 ms to load
        no_certificates = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.Client(base_url=address, headers=headers, trust_env=False, verify=no_certificates)
        self._address = address
        self._timeout_s = timeout_s
        self.patience_s = max(PATIENCE_S, PATIENCE_FACTOR * timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def screenshot(self, *, quiet_s: float = 0.0, limit_s: float = 0.0) -> bytes:
        """Return the screen as PNG.

        Args:
            quiet_s: Wait until the picture has not changed for so long; 0: take it as it is. Only our guests wait.
            limit_s: Wait no longer than this.
        """
        wait = {"quiet_s": str(quiet_s), "limit_s": str(limit_s)} if quiet_s > 0 else {}
        return self._get("/screenshot", wait, timeout_s=self._timeout_s + limit_s)

    def check_health(self) -> None:
        """Take a screenshot and ask what is wrong.

        Raises:
            EnvError: If anything is.
        """
        self._get("/health")

    def titles(self) -> list[str]:
        """Return the titles of the windows, oldest first."""
        return [found["title"] for found in cast(list[dict[str, str]], _decoded(self._get("/windows")))]

    def wait_for(self, ready: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll a healthy guest until `ready`.

        Raises:
            EnvError: If the deadline passes, says what was awaited; or if a poll fails.
        """
        if not comes_true(ready, timeout_s):
            raise EnvError("guest", f"{what} did not come within {timeout_s:g} s")

    def greet(self) -> None:
        """Ask our own guest server once, for a moment, whether it is healthy.

        Raises:
            EnvError: If it does not say so.
        """
        self._call("GET", "/health", timeout_s=CONNECT_TIMEOUT_S)

    def wait_until_healthy(
        self,
        timeout_s: float,
        is_running: Callable[[], bool],
        probe: "Callable[[Guest], object]" = greet,
    ) -> None:
        """Wait until the guest takes screenshots; what fails before counts as not yet.

        Args:
            timeout_s: Wait no longer than this.
            is_running: Says whether there is anything to wait for.
            probe: Fails while the guest is not healthy.

        Raises:
            EnvError: If the deadline passes, or the guest ends.
        """
        began = time.monotonic()
        ask_engine_at = began
        while True:
            try:
                probe(self)
            except EnvError as error:
                now = time.monotonic()
                if now > began + timeout_s:
                    raise EnvError("guest", f"no healthy guest within {timeout_s:g} s: {error}") from error
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
            self._post("/action", {"events": events}, timeout_s=self._timeout_s + duration_s)

    def execute(self, command: Command, *, shell: bool = False, timeout_s: float | None = None) -> Execution:
        """Run a program to its end."""
        timeout_s = timeout_s or min(self.patience_s, LONGEST_EXECUTION_S)
        body = {"command": command, "shell": shell}
        answer = cast(dict[str, Any], _decoded(self._post("/setup/execute", body, timeout_s=timeout_s)))
        return Execution(str(answer["output"]), str(answer.get("error", "")), int(answer.get("returncode", 0)))

    def launch(self, command: Command, *, shell: bool = False) -> None:
        """Start a program and leave it running."""
        self._post("/setup/launch", {"command": command, "shell": shell})

    def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        self._call("POST", "/setup/upload", data={"file_path": path}, files={"file_data": (path, content)})

    def file(self, path: str) -> bytes | None:
        """Return the content of a file, None where there is none."""
        return self._call("POST", "/file", data={"file_path": path}, missing_ok=True)

    def open_file(self, path: str) -> None:
        """Open a file with the application that it belongs to, and wait for its window."""
        self._post("/setup/open_file", {"path": path}, timeout_s=self.patience_s)

    def activate_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Raise a window and give it the keyboard."""
        self._post("/setup/activate_window", {"window_name": name, "strict": strict, "by_class": by_class})

    def close_window(self, name: str, *, strict: bool = False, by_class: bool = False) -> None:
        """Ask a window to close."""
        self._post("/setup/close_window", {"window_name": name, "strict": strict, "by_class": by_class})

    def reset(self) -> None:
        """End every program, renew the files and let go of every key."""
        self._post("/setup/reset", {}, timeout_s=2 * self._timeout_s)

    @tenacity.retry(
        retry=tenacity.retry_if_exception(_is_passing),
        stop=tenacity.stop_after_attempt(GET_ATTEMPTS),
        wait=tenacity.wait_fixed(GET_PAUSE_S),
        reraise=True,
    )
    def _get(self, path: str, parameters: Mapping[str, str] | None = None, *, timeout_s: float | None = None) -> bytes:
        return cast(bytes, self._call("GET", path, params=parameters, timeout_s=timeout_s))

    def _post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> bytes:
        return cast(bytes, self._call("POST", path, json=body, timeout_s=timeout_s))

    def _call(
        self, method: str, path: str, *, timeout_s: float | None = None, missing_ok: bool = False, **request: Any
    ) -> bytes | None:
        """Make one request; the deadline holds for all of it, not only for each read."""
        limit_s = timeout_s or self._timeout_s
        deadline = time.monotonic() + limit_s
        timeout = httpx.Timeout(limit_s, connect=CONNECT_TIMEOUT_S)
        try:
            with self._client.stream(method, path, timeout=timeout, **request) as response:
                content = _read(response, deadline)
        except httpx.HTTPError as error:
            raise EnvError("guest", f"{method} {path} of {self._address}: {type(error).__name__}: {error}") from error
        if response.status_code == httpx.codes.NOT_FOUND and missing_ok:
            return None
        if response.status_code != httpx.codes.OK:
            said = content[:500].decode(errors="replace")
            raise EnvError("guest", f"{method} {path} of {self._address} gave {response.status_code}: {said}")
        return content


def comes_true(condition: Callable[[], bool], limit_s: float, poll_s: float = POLL_S) -> bool:
    """Poll a condition, and return whether it came true within the limit."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_result(operator.not_),
        stop=tenacity.stop_after_delay(limit_s),
        wait=tenacity.wait_fixed(poll_s),
        retry_error_callback=lambda _: False,
    )(condition)


def _read(response: httpx.Response, deadline: float) -> bytes:
    chunks, size = [], 0
    for chunk in itertools.chain((b"",), response.iter_bytes()):  # the headers may have taken all the time
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_ANSWER or time.monotonic() > deadline:
            raise httpx.ReadTimeout(f"the answer was not complete after {size} bytes")
    return b"".join(chunks)


def _decoded(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError as error:
        raise EnvError("guest", f"the guest answered {content[:100]!r} where JSON was due") from error
