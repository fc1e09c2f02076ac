"""Runs of train.py as a person starts them, what they write, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from arpo.callbacks.checkpoint import checkpoints
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0
"""How long a test waits for a run; a slow machine needs a good part of it."""

KEEP = "callbacks.checkpoint.keep=99"
"""Every checkpoint of a smoke run stays, so that a shorter run can be compared with it."""

NOT_COMPARED = (
    *("time/", "env/", "harness/", "rollout/resumed_episodes", "rollout/retried_episodes"),
    *("engine/tokens_per_s", "engine/steps", "engine/in_flight", "engine/waiting"),
    *("engine/prompt_cached", "engine/pictures_cached", "engine/check_s", "engine/moved_bytes"),
)
"""Metrics of how a process went, not of what was learned; a run that goes on moves no weights before it begins."""


class Run:
    """One folder of results and the processes that wrote it, one after the other, each with the same overrides.

    They take `sessions` for the temporary directory of the machine.
    """

    def __init__(self, directory: Path, sessions: Path, *overrides: str) -> None:
        self.directory, self.sessions, self.overrides = directory, sessions, overrides
        self.log = directory.with_name(directory.name + ".log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *overrides: str) -> None:
        """Start train.py as the leader of a process group of its own, as a shell does."""
        command = [sys.executable, "train.py", f"hydra.run.dir={self.directory}", *self.overrides, *overrides]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ARPO_", "VLLM_"))}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment | {"TMPDIR": str(self.sessions), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> int:
        """Wait for the end and give the exit code, negative for the signal that killed it."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def go(self, *overrides: str) -> int:
        self.start(*overrides)
        return self.wait()

    def wait_until(self, happened: Callable[[], bool], what: str) -> None:
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert self.process.poll() is None, f"the run ended before {what}: {self.said}"
            assert time.monotonic() < deadline, f"the run did not come to {what}: {self.said}"
            time.sleep(0.01)

    def wait_for_rollout(self, iteration: int) -> None:
        """Wait until the first episode of an iteration, counted from 0, is on disk, and others are running."""
        self.wait_until(self.episodes(iteration).exists, f"the rollout of iteration {iteration}")

    def episodes(self, iteration: int) -> Path:
        """Return the file of the episodes of an iteration, counted from 0; it is there once one has ended."""
        return self.directory / "trajectories" / "train" / f"iteration_{iteration:06d}.jsonl"

    def send(self, sign: signal.Signals) -> None:
        """Send a signal: Ctrl-C to the whole process group as a terminal does, another one to its leader."""
        assert self.process is not None
        (os.killpg if sign is signal.SIGINT else os.kill)(self.process.pid, sign)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in processes_of(self.sessions):
            process.kill()

    @property
    def said(self) -> str:
        """Everything that the last process wrote to the terminal."""
        return self.log.read_text(errors="replace")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: iteration 0 and those that were completed."""
        path = self.directory / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def learned(self) -> list[dict[str, Any]]:
        """The metrics that a run and its repetition have in common."""
        return [{k: v for k, v in line.items() if not k.startswith(NOT_COMPARED)} for line in self.metrics]

    @property
    def checkpoints(self) -> list[Path]:
        """Oldest first."""
        return checkpoints(self.directory / "checkpoints")

    def trajectories(self, iterations: Sequence[int]) -> list[Trajectory]:
        store = TrajectoryStore(self.directory / "trajectories")
        return [trajectory for iteration in iterations for trajectory in store.read("train", iteration)]

    def files(self) -> dict[str, tuple[int, int]]:
        """Every file of the run with its time and size, but for what Hydra writes at every start."""
        return {
            str(path.relative_to(self.directory)): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in self.directory.rglob("*")
            if path.is_file() and path.name != "train.log" and path.parent.name != ".hydra"
        }

    def assert_nothing_left(self) -> None:
        """No process, no temporary file, neither of the last process nor of one that died before."""
        self.assert_gone_within(5)  # a process that was killed takes a moment to be gone
        assert self.unfinished == []

    def assert_gone_within(self, limit_s: float) -> None:
        """No process and no temporary file after so many seconds; see `deadline_in`."""
        deadline = deadline_in(limit_s)
        while (processes_of(self.sessions) or files_in(self.sessions)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [" ".join(process.cmdline()) for process in processes_of(self.sessions)] == []
        assert files_in(self.sessions) == []

    @property
    def unfinished(self) -> list[Path]:
        """Files that were not yet renamed to what they were to be."""
        return [path for path in self.directory.rglob("*") if path.suffix in (".partial", ".tmp") and path.is_file()]


@dataclass(frozen=True)
class Smoke:
    """The run of `experiment=smoke` as it is, warm start first."""

    run: Run
    policy: Path
    """What the warm start wrote."""
    sessions: Path
    """The temporary directory of the runs that do it again."""

    @property
    def iterations(self) -> int:
        return len(self.run.metrics) - 1

    def again(self, directory: Path, *overrides: str) -> Run:
        """A run that does the same in another folder."""
        return Run(directory, self.sessions, "experiment=smoke", f"model.path={self.policy}", KEEP, *overrides)


def deadline_in(limit_s: float) -> float:
    """Return the moment that lies so many seconds ahead, or more on a machine with more work than cores."""
    return time.monotonic() + limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def processes_of(sessions: Path) -> list[psutil.Process]:
    """The processes that were started with a temporary directory below this one, or work there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            marks = [*process.cmdline(), *process.environ().values(), *(file.path for file in process.open_files())]
        except psutil.Error:
            continue
        if any(str(sessions) in mark for mark in marks):
            found.append(process)
    return found


def files_in(directory: Path) -> list[Path]:
    """Everything in a directory that is no directory; files may go while one looks."""
    return [Path(place) / name for place, _, names in os.walk(directory) for name in names]


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """Compare everything that two checkpoints hold, bit for bit."""
    loaded = [torch.load(path, map_location="cpu", weights_only=True) for path in (one, other)]
    assert differences(*loaded, "") == []


def differences(one: Any, other: Any, place: str) -> list[str]:
    """Name the places at which two trees of built-ins and tensors differ."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one, other) else [place]
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in differences(one[key], other[key], f"{place}/{key}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for index, (a, b) in pairs for found in differences(a, b, f"{place}/{index}")]
    return [] if one == other else [f"{place}: {one!r:.80} and {other!r:.80}"]
