"""The home directory of an instance on this machine: what a checker reads of a guest, read from a temporary folder."""

import os
import shutil
import signal
import subprocess

from arpo.envs.desktop.templates.template import HOME, Home
from arpo.envs.guest.client import Execution, HangingProgramError

ENDED = ("timeout", "--signal=KILL", "2")  # before a program that may hang: it ends what that has started too
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
        words = [*ENDED, *POWERLESS, "sh", "-c", command]
        environment = {**os.environ, "TMPDIR": str(self.folder.parent)}
        text = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
        done = subprocess.run(words, cwd=self.folder, env=environment, check=False, **text)
        if done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise HangingProgramError("guest", f"{command!r} did not end")
        return Execution(done.stdout[:LARGEST_OUTPUT], done.stderr, done.returncode)


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
