"""Trainings of this folder in a process of their own, which has computed nothing yet and may have several ranks."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def run_alone(work: Callable[..., None], *arguments: object, timeout: float = 900) -> None:
    """Call a function of a module in a new process, to its good end."""
    command = [sys.executable, "-m", "tests.invariant.running"]
    call = pickle.dumps((work, arguments))
    done = subprocess.run(command, cwd=ROOT, input=call, capture_output=True, timeout=timeout, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


if __name__ == "__main__":
    torch.set_num_threads(1)
    work, arguments = pickle.load(sys.stdin.buffer)
    work(*arguments)
