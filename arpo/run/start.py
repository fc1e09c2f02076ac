"""Where a run begins: its name, the checkpoint it continues from, and the policy it starts with."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from arpo.callbacks.checkpoint import checkpoints, iteration_of, newest_checkpoint
from arpo.errors import ConfigError
from arpo.host.files import take_lock

log = logging.getLogger(__name__)

NOT_IN_THE_NAME = ("experiment=", "resume=", "iterations=", "paths.", "hydra", "+hydra")
"""Overrides that say where or how long, not what: they do not make another run, and a longer one goes on."""

WARMSTART_GRACE_S = 30.0
"""How long a warm start may take to end its browsers when the run is interrupted."""


def run_name(overrides: list[str]) -> str:
    """Name a run by the overrides that make it different from the experiment it is.

    >>> run_name(["experiment=arpo_miniwob", "replay=off", "seed=2"])
    'replay=off,seed=2'
    """
    parts = sorted(override for override in overrides if not override.startswith(NOT_IN_THE_NAME))
    name = re.sub(r"[^\w=,.+-]+", "_", ",".join(parts)) or "default"
    return name if len(name) <= 100 else f"{name[:80]}-{sha256(name.encode()).hexdigest()[:8]}"


def find_checkpoint(resume: str | None, directory: str | Path) -> Path | None:
    """Give the checkpoint that the run continues from, or None for a new run.

    Args:
        resume: None for a new run, `auto` for the newest valid checkpoint of the run's own, or a file.
        directory: The run's own checkpoints.

    Raises:
        ConfigError: When `resume` names a file that is not there or belongs to another run, whose trajectories the
            replay buffer would miss; or when all checkpoints of the run are damaged.
    """
    if resume is None:
        return None
    if resume == "auto":
        found = newest_checkpoint(directory)
        if found is None and checkpoints(Path(directory)):
            raise ConfigError(
                f"every checkpoint in {directory} is damaged. Put one back from a copy, or delete the run's folder to "
                "start again"
            )
        log.info("resume=auto: %s", found or "no checkpoint yet, starting from the beginning")
        return found
    path = Path(resume)
    if not path.is_file():
        raise ConfigError(f"resume={path}: there is no such checkpoint; resume=auto finds the newest one of this run")
    if path.parent.resolve() != Path(directory).resolve():
        raise ConfigError(
            f"resume={path} belongs to another run than {Path(directory).parent}. Go on there: give that run's "
            "overrides, or hydra.run.dir=DIR with its folder"
        )
    return path


def forget_later(run_dir: Path, checkpoint: Path) -> None:
    """Remove checkpoints and evaluations of later iterations: the run takes another way from here."""
    for path in [*checkpoints(checkpoint.parent), *(run_dir / "eval").glob("iteration_*.json")]:
        if iteration_of(path) > iteration_of(checkpoint):
            log.info("%s lies beyond the checkpoint that the run continues from: removed", path)
            path.unlink()


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Keep other runs out of a run's folder; the kernel lets go when the process ends, however it ends.

    Raises:
        ConfigError: When another process has it.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    if rank_zero_only.rank != 0:  # type: ignore[attr-defined]
        yield  # the other processes of the same run
        return
    descriptor = take_lock(run_dir / ".lock", mode=0o644)
    if descriptor is None:
        raise ConfigError(
            f"another process is working in {run_dir}: wait for it, or start elsewhere with paths.output=DIR"
        )
    try:
        yield
    finally:
        os.close(descriptor)


def refuse_to_overwrite(run_dir: Path, resume: str | None) -> None:
    """Stop a new run from writing over an old one.

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


def ensure_model(path: Path, warmstart: str, output: str) -> None:
    """Run the warm start that writes the policy to `path`, where it has not run yet.

    It runs in a process of its own, as a person would run it, so that nothing of it stays in memory.

    Raises:
        ConfigError: When the warm start fails, or writes to another place.
    """
    if (path / "config.json").exists():
        return
    command = [sys.executable, sys.argv[0], f"experiment={warmstart}", f"paths.output={output}"]
    log.info("%s does not exist yet: running %s first", path, " ".join(command[1:]))
    process = subprocess.Popen([*command, "resume=auto"])
    try:
        code = process.wait()
    except BaseException as error:  # the warm start must end what it started before we leave
        if not isinstance(error, KeyboardInterrupt):  # Ctrl-C has reached it already
            process.terminate()
        _wait_or_kill(process)
        raise
    if code != 0:
        raise ConfigError(f"the warm start failed: see its output above; it was experiment={warmstart}")
    if not (path / "config.json").exists():
        raise ConfigError(
            f"there is still nothing at model.path={path}: experiment={warmstart} writes elsewhere; leave model.path "
            "out, or set it to a directory that exists"
        )


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(timeout=WARMSTART_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
