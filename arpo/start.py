"""Where a run begins: its name, the checkpoint it continues from, and the policy it starts with."""

import logging
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from arpo.callbacks.checkpoint import newest_checkpoint
from arpo.errors import ConfigError

log = logging.getLogger(__name__)

NOT_IN_THE_NAME = ("experiment=", "resume=", "paths.", "hydra", "+hydra")
"""Overrides that say where or how often, not what: they do not make another run."""

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
        ConfigError: When `resume` names a file that is not there.
    """
    if resume is None:
        return None
    if resume == "auto":
        found = newest_checkpoint(directory)
        log.info("resume=auto: %s", found or "no checkpoint yet, starting from the beginning")
        return found
    path = Path(resume)
    if not path.is_file():
        raise ConfigError(f"resume={path}: there is no such checkpoint; resume=auto finds the newest one of this run")
    return path


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
