"""The home directory of an instance on this machine: what a checker reads of a guest, read from a temporary folder."""

import subprocess

from arpo.envs.desktop.templates.template import HOME, Home


class LocalHome(Home):
    """A folder that holds the files of an instance."""

    def __init__(self, folder, instance):
        self.folder = folder
        for name, content in instance.files.items():
            path = folder / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o644)

    def content(self, path):
        file = self.folder / path
        return file.read_bytes() if file.is_file() else b""

    def output(self, command):
        return self.run(command.replace(HOME, str(self.folder)))

    def run(self, command):
        """Run a command as a person types it into a terminal."""
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, capture_output=True, text=True, check=False)
        return done.stdout
