"""The origin of a result: the code, the packages, the machine and the command of a run."""

import json
import logging
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import lightning as L
import psutil
import torch
from typing_extensions import override

from arpo.callbacks.evaluation import Evaluation
from arpo.host.environment import recorded
from arpo.host.files import write_atomically

log = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[2]


class RunRecord(L.Callback):
    """Record `run.json`: one entry for each time the run was started, and how that ended.

    Args:
        directory: The folder of the run.
    """

    def __init__(self, directory: str | Path) -> None:
        self.path = Path(directory) / "run.json"
        self._started = _now()  # engine, browsers and demonstrations start before Lightning calls any hook
        self._entry: dict[str, Any] | None = None

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if trainer.is_global_zero and stage == "fit":
            self._entry = {"started": self._started, **provenance()}
            self._write("running")

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write("running")  # a killed run has then a time of its last iteration

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        whole = trainer.max_epochs in (None, -1) or trainer.current_epoch >= (trainer.max_epochs or 0)
        evaluated = not any(isinstance(each, Evaluation) for each in trainer.callbacks)  # type: ignore[attr-defined]
        whole = whole and (evaluated or not trainer.should_stop)  # else the evaluation at the end was left out
        self._write("finished" if whole else f"stopped after iteration {trainer.current_epoch}")

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        try:
            self._write(f"{type(exception).__name__}: {exception}")
        except OSError as error:  # a full disk, say: what ended the run must not be hidden by what followed
            log.warning("cannot write %s: %s", self.path, error)

    def _write(self, status: str) -> None:
        """Put this start's entry last, after those of earlier starts of the same run."""
        if self._entry is None:
            return
        self._entry |= {"status": status, "updated": _now()}
        earlier = json.loads(self.path.read_text(encoding="utf-8"))["starts"] if self.path.exists() else []
        starts = [entry for entry in earlier if entry["started"] != self._entry["started"]]
        write_atomically(self.path, json.dumps({"starts": [*starts, self._entry]}, indent=1))


def provenance() -> dict[str, Any]:
    """Return everything that is needed to know what ran."""
    return {
        "command": sys.argv,
        "git": git_state(PROJECT),
        "python": platform.python_version(),
        "machine": machine(),
        "environment": recorded(os.environ),
        "packages": dict(sorted((found.metadata["Name"], found.version) for found in distributions())),
    }


def git_state(directory: Path) -> dict[str, Any] | None:
    """Return the commit of a checkout and whether files differ from it; None where there is no git checkout."""
    answers = []
    for question in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
        try:
            asked = subprocess.run(
                ["git", *question], cwd=directory, capture_output=True, encoding="utf-8", check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        answers.append(asked.stdout.strip())
    return {"commit": answers[0], "dirty": bool(answers[1])}


def machine() -> dict[str, Any]:
    """Return what the machine is made of."""
    return {
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
