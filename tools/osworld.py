"""Prepare the second environment: OSWorld's own graders with the packages that they need.

`make osworld` runs it. `desktop-env` asks for packages that exclude ours (numpy below 2, torch 2.5), so it lives in an
environment of its own, without most of what it asks for: `requirements/osworld.txt` is everything its graders use.

    python3 tools/osworld.py          # make the environment, or complete it
    python3 tools/osworld.py lock     # write requirements/osworld.txt anew from requirements/osworld.in
"""

import hashlib
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setup import ROOT, Environment, SetupError, forget_interrupted_installs, lock_text, one_at_a_time

log = logging.getLogger("osworld")

WANTED = ROOT / "requirements" / "osworld.in"
LOCK = ROOT / "requirements" / "osworld.txt"
GRADERS = ROOT / "arpo" / "envs" / "osworld_grader_main.py"
WHEEL = "desktop-env"
"""Installed without its dependencies."""


class GraderEnvironment(Environment):
    """The virtual environment of the graders."""

    def fingerprint(self) -> str:
        """Changes with anything that decides what is installed."""
        digest = hashlib.sha256((self.path / "pyvenv.cfg").read_bytes())
        for file in (LOCK, Path(__file__)):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def ensure(self) -> None:
        """Install what is missing and write the stamp last."""
        if self.is_complete():
            return
        (self.path / "setup.stamp").unlink(missing_ok=True)
        self.create()
        forget_interrupted_installs(self.site_packages)
        self.pip("install", "--no-deps", "--no-compile", "-r", str(LOCK), total=len(LOCK.read_text().splitlines()))
        self.verify()
        partial = self.path / "setup.stamp.tmp"
        partial.write_text(self.fingerprint())
        partial.replace(self.path / "setup.stamp")
        log.info("osworld: the graders are in %s", self.path)

    def verify(self) -> None:
        """Import every grader once.

        Raises:
            SetupError: If the process does not come up, or a grader lacks a package.
        """
        log.info("osworld: importing every grader once")
        done = subprocess.run(
            [self.python, "-I", GRADERS], input='{"list": true}\n', capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SetupError(f"the graders do not start:\n{done.stderr[-2000:]}")
        lists = json.loads(done.stdout)
        lacking = {name: why for known in lists.values() for name, why in known.items() if why is not None}
        if lacking:
            raise SetupError(f"the packages are installed, but some graders do not import: {lacking}")


def write_lock() -> None:
    """Resolve requirements/osworld.in in an environment of its own and write what came out."""
    environment = GraderEnvironment(ROOT / ".venv-lock", "cpu")
    environment.create()
    wanted = [line.split("#")[0].strip() for line in WANTED.read_text().splitlines()]
    wheels = [line for line in wanted if line.startswith(WHEEL)]
    environment.pip("install", *(line for line in wanted if line and line not in wheels), total=90)
    environment.pip("install", "--no-deps", *wheels, total=90)
    frozen = subprocess.run(
        [environment.python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout
    LOCK.write_text(lock_text(frozen))
    shutil.rmtree(environment.path)
    log.info("osworld: wrote %s", LOCK)


def run(arguments: Sequence[str]) -> None:
    """Do what the command line asks.

    Raises:
        SetupError: If it cannot be done here.
    """
    if list(arguments) not in ([], ["lock"]):
        raise SetupError(f"unknown arguments {' '.join(arguments)!r}; allowed is nothing, or: lock")
    with one_at_a_time():
        if arguments:
            write_lock()
        else:
            GraderEnvironment(ROOT / ".venv-osworld", "cpu").ensure()


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        run(arguments)
    except SetupError as error:
        log.error("osworld: %s", error)  # noqa: TRY400  a person reads this; a traceback would not help them
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
