"""Prepare the second environment: OSWorld's own graders with the packages that they need.

`make osworld` runs it. `desktop-env` asks for packages that exclude ours (numpy below 2, torch 2.5), so it lives in an
environment of its own, without most of what it asks for: `requirements/osworld.txt` is everything its graders use.

    python3 tools/osworld.py          # make the environment, or complete it
    python3 tools/osworld.py lock     # write requirements/osworld.txt anew from requirements/osworld.in
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setup import ROOT, Environment, SetupError, log, main

WANTED = ROOT / "requirements" / "osworld.in"
LOCK = ROOT / "requirements" / "osworld.txt"
GRADERS = ROOT / "arpo" / "envs" / "osworld" / "grader_main.py"


def install(environment: Environment) -> None:
    """Install the lock, and import every grader once.

    Raises:
        SetupError: If the graders' process does not come up, or a grader lacks a package.
    """
    environment.uv("installing OSWorld's graders", "install", "--no-deps", "--requirements", LOCK)
    log.info("setup: importing every grader once")
    done = subprocess.run(
        [environment.python, "-I", GRADERS],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        raise SetupError(f"the graders do not start:\n{done.stderr[-2000:]}")
    lists = json.loads(done.stdout)
    lacking = {name: why for known in lists.values() for name, why in known.items() if why is not None}
    if lacking:
        raise SetupError(f"the packages are installed, but some graders do not import: {lacking}")


def run(*, lock: bool) -> None:
    """Make the graders' environment, or write its lock."""
    environment = Environment(ROOT / ".venv-osworld", "cpu", (LOCK, Path(__file__)))
    if lock:
        environment.lock(WANTED, LOCK)
    else:
        environment.ensure(install)


if __name__ == "__main__":
    sys.exit(main(run, sys.argv[1:]))
