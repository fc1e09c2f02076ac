"""A dataset of episodes back into a trajectory store, from which `env=recorded` and the offline methods learn."""

from collections.abc import Iterator
from pathlib import Path

from arpo.apps.dataset.arrow import pyarrow
from arpo.apps.dataset.columns import trajectory_of
from arpo.errors import ConfigError
from arpo.host.files import atomically
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Trajectory

ROWS = 16
"""In memory at the same time, pictures and all."""


def restore(dataset: Path, directory: Path) -> int:
    """Write the episodes of a dataset as a trajectory store, whole or not at all, and return how many there were.

    Args:
        dataset: A folder that `export_parquet` has written.
        directory: The folder to write; must not exist.
    """
    files = sorted((dataset / "data").glob("*.parquet"))
    if not files:
        raise ConfigError(f"{dataset} holds no dataset: name the folder that `--to parquet` wrote, as RUN/parquet")
    if directory.exists():
        raise ConfigError(f"{directory} exists: name another folder with --out, or delete that one")
    count = 0
    with atomically(directory) as partial:
        store = TrajectoryStore(partial)
        for file in files:
            for trajectory in _read(file):
                store.write(trajectory)
                count += 1
    return count


def _read(file: Path) -> Iterator[Trajectory]:
    pa = pyarrow()
    try:
        for batch in pa.parquet.ParquetFile(file).iter_batches(batch_size=ROWS):
            yield from map(trajectory_of, batch.to_pylist())
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is not of a dataset of episodes: {type(error).__name__}: {error}") from error
