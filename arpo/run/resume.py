"""Where a run continues: its newest checkpoint, and what lies beyond it."""

import logging
from pathlib import Path

from arpo.callbacks.checkpoint import checkpoints, iteration_of, newest_checkpoint
from arpo.errors import ConfigError

log = logging.getLogger(__name__)


def find_checkpoint(resume: str | None, directory: str | Path) -> Path | None:
    """Return the checkpoint that the run continues from, or None for a new run.

    Args:
        resume: None for a new run, `auto` for the newest valid checkpoint of the run's own, or a file
                that `check_resume` has accepted.
        directory: The run's own checkpoints.

    Raises:
        ConfigError: When all checkpoints of the run are damaged.
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
    return Path(resume)


def forget_later(run_dir: Path, checkpoint: Path) -> None:
    """Remove checkpoints and evaluations of later iterations: the run takes another way from here."""
    for path in [*checkpoints(checkpoint.parent), *(run_dir / "eval").glob("iteration_*.json")]:
        if iteration_of(path) > iteration_of(checkpoint):
            log.info("%s lies beyond the checkpoint that the run continues from: removed", path)
            path.unlink()
