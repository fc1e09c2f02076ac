"""The folder of a run: its name, the lock on it, and its log."""

import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path

from arpo.errors import ConfigError
from arpo.host.files import take_lock
from arpo.host.log_lines import LineFormatter

NOT_IN_THE_NAME = ("experiment=", "resume=", "iterations=", "paths.", "hydra")
"""Overrides of place and length, which do not make another run: a longer one goes on."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
"""The variables in which launchers put the rank of a process, in Lightning's order."""

MOST_CHARACTERS, MOST_BYTES = 100, 200
"""The longest name that stands as it is: file systems take 255 bytes, and an ending such as `.partial` follows it."""
CUT_CHARACTERS, CUT_BYTES = 80, 160
MARKED = re.compile(r"-[0-9a-f]{16}$")
"""The end of a name that lacks some of its overrides."""


def run_name(overrides: Sequence[str]) -> str:
    """Name a run by the overrides that make it different from the experiment it is, or by some and a digest of all.

    >>> run_name(["experiment=arpo_miniwob", "replay=off", "seed=2"]), run_name(["model.path=/x/m"])
    ('replay=off,seed=2', 'model.path=_x_m-b5528fa9357d6ea1')
    """
    parts = [each for each in overrides if not each.lstrip("+").startswith(NOT_IN_THE_NAME)]
    parts.sort(key=lambda part: part.partition("=")[0] + "=")  # of two values of one key the last one counts
    return folder_name(*parts) if parts else "default"


def folder_name(*parts: str) -> str:
    """Return a name for a folder that no other parts give: legal, of at most 200 bytes, and the parts where possible.

    Letters that a shell, a URL or another system treats as special are replaced, and so are a dot or a dash in front
    and forms that Unicode holds for another one. File systems that take upper case for lower case are not supported.
    """
    name = ",".join(parts)
    legal = re.sub(r"[^\w=,.+-]+", "_", re.sub(r"^[.-]+", "_", unicodedata.normalize("NFC", name))) or "_"
    fits = len(name) <= MOST_CHARACTERS and len(name.encode(errors="replace")) <= MOST_BYTES
    if legal == name and fits and not MARKED.search(name) and not any("," in part for part in parts):
        return name
    digest = sha256(json.dumps(parts).encode()).hexdigest()[:16]
    return f"{legal[:CUT_CHARACTERS].encode()[:CUT_BYTES].decode(errors='ignore')}-{digest}"


@cache
def start_timestamp() -> str:
    """Return the time of this process's first call, in UTC and to the microsecond: no two evaluations share it."""
    return datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S-%f")


def rank() -> int:
    """Return the rank of this process in its run, before Lightning is imported."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


@contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Keep other runs out of a run's folder until this process ends, however it ends, and copy the log into it."""
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
