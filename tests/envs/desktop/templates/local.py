"""The home directory of an instance on this machine: what a checker reads of a guest, read from a temporary folder."""

import os
import shutil
import signal
import subprocess
import sys

from arpo.envs.desktop.templates.template import HOME, Home
from arpo.envs.guest.client import HangingProgramError
from arpo.envs.protocol import Execution

TIMEOUT_S = 2  # of a program that may hang
LARGEST_OUTPUT = 320 * 1024  # characters of what a program writes that a guest hands on
POWERLESS = ("setpriv", "--bounding-set=-all", "--") if os.geteuid() == 0 and shutil.which("setpriv") else ()
"""Before a program of root's, which may otherwise read what is locked; the user of a guest may not."""


class LocalGuest:
    def __init__(self, folder):
        self.folder = folder

    def file(self, path):
        file = self.folder / path.removeprefix(f"{HOME}/")
        return file.read_bytes() if file.is_file() else None

    def execute(self, command, *, shell):
        command = command.replace(HOME, str(self.folder))
        path = f"{sys.base_prefix}/bin:{os.environ['PATH']}"  # a shim that looks for Python first takes as long as it
        environment = {**os.environ, "PATH": path, "TMPDIR": str(self.folder.parent)}
        options = {"cwd": self.folder, "env": environment, "encoding": "utf-8", "errors": "replace"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        with subprocess.Popen([*POWERLESS, "sh", "-c", command], **options, **pipes) as program:
            try:
                output, errors = program.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)  # what it has started ends too
                raise HangingProgramError("guest", f"{command!r} did not end") from None
        return Execution(output[:LARGEST_OUTPUT], errors, program.returncode)


class LocalHome(Home):
    def __init__(self, folder, instance):
        super().__init__(LocalGuest(folder))
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in instance.files.items():
            path = folder / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o644)

    def run(self, command):
        return self.output(command)
