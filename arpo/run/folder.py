"""The folder of a run: its name, who may write into it, and what is in it before the run begins."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from arpo.errors import ConfigError
from arpo.host.files import take_lock
from arpo.quoting import LineFormatter

NOT_IN_THE_NAME = ("experiment=", "resume=", "iterations=", "paths.", "hydra", "+hydra")
"""Overrides that say where or how long, not what: they do not make another run, and a longer one goes on."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""The variables by which launchers say which process of a run this is, in Lightning's order."""


def run_name(overrides: list[str]) -> str:
    """Name a run by the overrides that make it different from the experiment it is.

    >>> run_name(["experiment=arpo_miniwob", "replay=off", "seed=2"])
    'replay=off,seed=2'
    """
    parts = sorted(override for override in overrides if not override.startswith(NOT_IN_THE_NAME))
    name = re.sub(r"[^\w=,.+-]+", "_", ",".join(parts)) or "default"
    return name if len(name) <= 100 else f"{name[:80]}-{sha256(name.encode()).hexdigest()[:8]}"


def rank() -> int:
    """Return which process of the run this is, before Lightning is imported."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def check_resume(resume: str | None, directory: str | Path) -> None:
    """Check that a checkpoint that somebody named is there and the run's own.

    Args:
        resume: None for a new run, `auto`, or a checkpoint.
        directory: The run's own checkpoints.

    Raises:
        ConfigError: When it is not there, or belongs to another run, whose trajectories the replay buffer would
            miss.
    """
    if resume in (None, "auto"):
        return
    path = Path(str(resume))
    if not path.exists():
        raise ConfigError(f"resume={path}: there is no such checkpoint; resume=auto finds the newest one of this run")
    if path.parent.resolve() != Path(directory).resolve():
        raise ConfigError(
            f"resume={path} belongs to another run than {Path(directory).parent}. Continue there: give that run's "
            "overrides, or hydra.run.dir=DIR with its folder"
        )


def refuse_to_overwrite(run_dir: Path, resume: str | None) -> None:
    """Refuse to write a new run over an old one.

    Raises:
        ConfigError: When the folder already holds a run.
    """
    metrics = run_dir / "metrics.jsonl"
    if resume == "auto" or not metrics.exists() or metrics.stat().st_size == 0:
        return
    raise ConfigError(
        f"{run_dir} already holds a run. Continue it with resume=auto, start a second one elsewhere with "
        "paths.output=DIR, or delete the folder"
    )


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Keep other runs out of a run's folder, and copy the log into it.

    The kernel lets go of the folder when the process ends, however it ends.

    Raises:
        ConfigError: When another process has it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    if rank() != 0:
        with logging_to(run_dir / f"train_process_{rank()}.log"):
            yield  # the other processes of the same run
        return
    descriptor = take_lock(run_dir / ".lock", mode=0o644)
    if descriptor is None:
        raise ConfigError(
            f"another process is working in {run_dir}: wait for it, or start elsewhere with paths.output=DIR"
        )
    try:
        with logging_to(run_dir / "train.log"):
            yield
    finally:
        os.close(descriptor)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Copy the log to a file for a while."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def remove_empty(run_dir: Path, output: Path) -> None:
    """Remove the folder that Hydra made for a run that did not begin, and those above up to `output`, where empty."""
    folders = [run_dir, *(parent for parent in run_dir.parents if parent == output or output in parent.parents)]
    for folder in folders:
        if not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()
