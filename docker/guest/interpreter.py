"""A Python that has PyAutoGUI loaded already: a fork of it runs a program in 8 ms, a new process in 250.

Run as a program it reads one request a line and answers each on the descriptor that it is given. It keeps the rights
of the server, so that no program reaches it; each fork gives them up before it runs anything.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import walls

LARGEST_OUTPUT = 320 * 1024
"""Bytes that a program may write to each stream: as JSON, where a byte may take six, two of them fit into the 4 MiB
that a client reads."""


class Interpreter:
    """Runs `python -c` programs that use PyAutoGUI. Meaning as in a process of their own."""

    def __init__(self) -> None:
        read, write = os.pipe()
        command = [sys.executable, "-BEs", str(Path(__file__)), str(write)]
        # No file: Xlib would wait for ever for a pipe in the place of the one in the home directory.
        environment = {**os.environ, "XAUTHORITY": "/nowhere"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, pass_fds=(write,), start_new_session=True, env=environment
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self._lock = threading.Lock()
        self._loaded = threading.Event()
        threading.Thread(target=self._wait_until_ready, daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether it has finished loading, and lives."""
        return self._loaded.is_set() and not self.gone

    @property
    def gone(self) -> bool:
        """Whether it has ended, as it does with every reset."""
        return self._process.poll() is not None

    def run(self, code: str, timeout_s: float, group: int | None) -> dict:
        """Run a program, once PyAutoGUI is loaded, and return its `output`, `error` and `returncode`.

        Where the X server takes no more connections, PyAutoGUI does not load, and the program fails.

        Raises:
            TimeoutError: If it is not loaded in time.
        """
        if not self._loaded.wait(timeout_s):
            raise TimeoutError(f"PyAutoGUI was not loaded within {timeout_s:g} s")
        with self._lock, suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([code, timeout_s, group]).encode() + b"\n")
            self._process.stdin.flush()
            if answer := self._answers.readline():
                return json.loads(answer)
        return {"output": "", "error": "PyAutoGUI did not load", "returncode": 1}

    def _wait_until_ready(self) -> None:
        self._answers.readline()
        self._loaded.set()


def serve(answers: int) -> None:
    """Load PyAutoGUI once, then run one program after the other in forks."""
    import pyautogui  # noqa: F401 - this import is what takes so long
    import pyautogui_keys  # noqa: F401

    with os.fdopen(answers, "w") as out:
        print("ready", file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps(run_in_fork(*json.loads(line), answers)), file=out, flush=True)


def run_in_fork(code: str, timeout_s: float, group: int | None, answers: int) -> dict:
    """Run a program in a copy of this process, without the descriptor by which the server is answered."""
    output, error = os.memfd_create("output"), os.memfd_create("error")
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(error, 2)
            os.close(answers)
            walls.become_user(group)
            os._exit(execute(code))
        finally:
            os._exit(1)
    timer = threading.Timer(timeout_s, os.kill, (pid, signal.SIGKILL))
    timer.start()
    _, status = os.waitpid(pid, 0)
    timer.cancel()
    return {"output": _drain(output), "error": _drain(error), "returncode": os.waitstatus_to_exitcode(status)}


def execute(code: str) -> int:
    """Run a program here and return its exit status."""
    import pyautogui
    import pyautogui._pyautogui_x11 as backend
    import pyautogui_keys
    from Xlib.display import Display

    backend._display = Display()  # a connection to the X server does not survive a fork
    pyautogui_keys.install(pyautogui, backend, backend._display)
    status = 0
    try:
        with suppress(OSError):  # the user may have locked it
            os.chdir(Path.home())
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:  # noqa: BLE001 - as at the top of every program
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _drain(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read(LARGEST_OUTPUT).decode(errors="replace")


if __name__ == "__main__":
    serve(int(sys.argv[1]))
