"""How tests start the trainings of this folder: a module of it in a process of its own, which has several ranks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_module(name: str, *arguments: object, timeout: float = 900) -> None:
    """Run `python -m tests.invariant.NAME` to its end, which is to be a good one."""
    command = [sys.executable, "-m", f"tests.invariant.{name}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
