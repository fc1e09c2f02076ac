"""The frame around a run: errors of ours become one message and an exit code."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from arpo.errors import ArpoError
from arpo.run.folder import remove_empty

log = logging.getLogger("arpo")


@contextmanager
def explained(cfg: DictConfig) -> Iterator[None]:
    """Say what was wrong in one message, leave no empty folder behind, and exit with 2."""
    try:
        yield
    except ArpoError as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
        remove_empty(Path(cfg.paths.run_dir), Path(cfg.paths.output))
        sys.exit(2)
