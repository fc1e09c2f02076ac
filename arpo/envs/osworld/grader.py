"""OSWorld's own graders, in a process of their own with packages of their own."""

import json
import logging
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from arpo.errors import ConfigError, EnvError
from arpo.host.environment import spare_loopback

log = logging.getLogger(__name__)

MAIN = Path(__file__).parent / "grader_main.py"
STDERR_LINES = 20
"""Of what the process said last, for the message of an error."""


class GuestAddress(NamedTuple):
    """The addresses at which the servers of one guest listen, as OSWorld's graders need them."""

    host: str
    server_port: int
    """OSWorld's own server in the guest."""
    chromium_port: int
    """DevTools of Chrome."""
    vlc_port: int
    """VLC's status page."""
    secret: str = ""
    """What OSWorld's server demands in the guest; empty where it demands none."""


class GraderProcess:
    """A process that scores tasks with the metric functions of `desktop-env`.

    The process is started for the first task, and again after it died or was too slow. It ends with this process.

    Args:
        python: The interpreter of the second environment, which `make osworld` makes.
        timeout_s: For one task; downloads of some getters count.
    """

    def __init__(self, python: str | Path, *, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s of a grader must be greater than 0, got {timeout_s}")
        if not Path(python).exists():
            raise ConfigError(
                f"OSWorld's graders need an environment of their own, and there is no {python}: make osworld"
            )
        self._python = str(python)
        self._timeout_s = timeout_s
        self.process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._said: IO[bytes] = BytesIO()  # what the process logs for one task: it would fill a pipe

    def grade(self, evaluator: Mapping[str, Any], guest: GuestAddress, directory: Path) -> float:
        """Return the score of a task, in [0, 1] where its metric functions keep to that.

        Args:
            evaluator: Of the task file.
            guest: Where the task was done.
            directory: Of this environment alone; what is fetched from the guest is written there.

        Raises:
            EnvError: If the graders failed, or the guest did not answer them: there is no score then, and not a 0.
        """
        reply = self._ask({"guest": guest._asdict(), "directory": str(directory), "evaluator": evaluator})
        if "score" not in reply:
            raise EnvError("evaluate", f"OSWorld's graders gave no score: {reply['error']}: {reply['message']}")
        return float(reply["score"])

    def close(self) -> None:
        """End the process; idempotent."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(OSError), process:  # a broken pipe has nothing left to flush to
                process.kill()
        self._said.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            reply: dict[str, Any] = json.loads(self._read_line(process))
        except (OSError, ValueError) as error:
            self.close()
            raise EnvError("evaluate", f"OSWorld's graders: {error}") from error
        except BaseException:  # a reply that nobody waited for must not be taken for the next one
            self.close()
            raise
        self._said.seek(0)  # for the process too, which writes where we are
        self._said.truncate()
        return reply

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None:
            self.close()
            self._unread = b""
            self._said = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as the process
            spare_loopback()  # a proxy cannot reach guests, and its refusal reads like theirs
            self.process = subprocess.Popen(
                # -I: neither this directory nor the environment of ARPO is on its import path
                [self._python, "-I", "-X", "utf8", str(MAIN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=os.environ | {"TZ": "UTC"},  # the guest's zone, from which graders count days
            )
            log.debug("OSWorld's graders run in process %d", self.process.pid)
        return self.process

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        """Return the next line.

        Raises:
            OSError: If the process ends or is too slow.
        """
        assert process.stdout is not None
        deadline = time.monotonic() + self._timeout_s
        answers = select.poll()
        answers.register(process.stdout, select.POLLIN)
        while b"\n" not in self._unread:
            if not answers.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise OSError(f"no score within {self._timeout_s:g} s; {self._last_words()}")
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                raise OSError(f"the process ended with code {process.wait()}; {self._last_words()}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").splitlines()[-STDERR_LINES:]
        return "it said last: " + " | ".join(lines) if lines else "it said nothing"
