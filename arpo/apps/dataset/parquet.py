"""Episodes as Parquet files, one a split, and back: python -m arpo episodes outputs/arpo_miniwob/default --to parquet.

Parquet takes the package pyarrow, which nothing else here needs.
"""

import argparse
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from arpo.apps.dataset.card import FEATURES, Census, data_card, row, trajectory_of
from arpo.errors import ConfigError
from arpo.host.files import atomically
from arpo.rollout.storage import TrajectoryStore, store_of
from arpo.types import Trajectory

log = logging.getLogger(__name__)

ROWS = 64
"""Rows of a group at most, which a reader may have in memory at the same time."""
RESTORED_ROWS = 16
"""Rows that are read at the same time, pictures and all."""
GROUP_BYTES = 200_000_000
"""Bytes of a group at most, but that a larger episode has one of its own. `datasets` reads a group whole, and Arrow
cannot put more than 2 GiB of pictures into one column that is nested."""


def main(arguments: Sequence[str]) -> int:
    """Export the episodes of a run and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m arpo episodes", description="Write episodes as a dataset, or back."
    )
    parser.add_argument("run", type=Path, help="the folder of the run, such as outputs/arpo_miniwob/default")
    parser.add_argument("--to", choices=["parquet", "store"], required=True, help="store: what a dataset was made of")
    parser.add_argument("--out", type=Path, help="the folder to write; RUN/parquet or RUN/store by default")
    asked = parser.parse_args(arguments)
    directory = asked.out or asked.run / asked.to
    try:
        if asked.to == "store":
            log.info("%s holds %d episodes: source=%s", directory, restore(asked.run, directory), directory)
            return 0
        written = export_parquet(asked.run, directory)
    except OSError as error:
        raise ConfigError(f"cannot write {directory}: {error}; name another folder with --out") from error
    counts = ", ".join(f"{census.episodes} of {split}" for split, census in written.items())
    log.info("%s holds episodes: %s. datasets.load_dataset loads it, its README.md explains it", directory, counts)
    return 0


def pyarrow() -> Any:
    """Return the package, with its module `parquet`."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet files need the package pyarrow, which is not installed: `uv pip install pyarrow`, then try again"
        ) from error
    return pyarrow


def export_parquet(source: Path, directory: Path) -> dict[str, Census]:
    """Write the episodes of a run or store as a folder for `datasets.load_dataset`, and return the numbers by split.

    It is written whole or not at all, and must not exist yet.
    """
    store = TrajectoryStore(store_of(source))
    if directory.exists():
        raise ConfigError(f"{directory} exists: name another folder with --out, or delete that one")
    censuses = {split: Census() for split in sorted({split for split, _ in store.iterations()})}
    with atomically(directory) as partial:
        (partial / "data").mkdir(parents=True)
        for split, census in censuses.items():
            _write(partial / "data" / f"{split}.parquet", _schema(), _episodes(store, split), census)
        for split in [split for split, census in censuses.items() if not census.episodes]:  # cut at its first record
            (partial / "data" / f"{split}.parquet").unlink()
            del censuses[split]
        if not censuses:
            raise ConfigError(f"{source} holds no episodes: name the folder of a run, as outputs/arpo_miniwob/default")
        (partial / "README.md").write_text(
            data_card(" ".join(source.resolve().parts[-2:]), censuses, source), encoding="utf-8"
        )
    return censuses


def _episodes(store: TrajectoryStore, split: str) -> Iterator[Trajectory]:
    for found, iteration in store.iterations():
        if found == split:
            yield from map(store.load_screenshots, store.read(split, iteration))


def _write(path: Path, schema: Any, episodes: Iterator[Trajectory], census: Census) -> None:
    pa = pyarrow()

    def tables() -> Iterator[Any]:
        for trajectory in episodes:
            census.add(trajectory)
            yield pa.Table.from_pylist([row(trajectory)], schema=schema)

    with pa.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(tables()):
            writer.write_table(pa.concat_tables(group))


def _groups(tables: Iterator[Any]) -> Iterator[list[Any]]:
    """Yield tables of one row in lists as large as groups may be."""
    group: list[Any] = []
    for table in tables:
        if group and (len(group) == ROWS or sum(one.nbytes for one in group) + table.nbytes > GROUP_BYTES):
            yield group
            group = []
        group.append(table)
    if group:
        yield group


def _schema() -> Any:
    """Return the columns as Arrow knows them, with a note by which `datasets` knows which of them are pictures."""
    pa = pyarrow()

    def arrow(feature: Any) -> Any:
        if isinstance(feature, list):
            return pa.list_(arrow(feature[0]))
        match feature.get("_type"):
            case "Value":
                return pa.type_for_alias(feature["dtype"])
            case "Image":
                return pa.struct({"bytes": pa.binary(), "path": pa.string()})
        return pa.struct({name: arrow(inner) for name, inner in feature.items()})

    fields = [pa.field(name, arrow(feature)) for name, feature in FEATURES.items()]
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})})


def restore(dataset: Path, directory: Path) -> int:
    """Write the episodes of a dataset as a trajectory store, whole or not at all, and return how many there were."""
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
        for batch in pa.parquet.ParquetFile(file).iter_batches(batch_size=RESTORED_ROWS):
            yield from map(trajectory_of, batch.to_pylist())
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is not of a dataset of episodes: {type(error).__name__}: {error}") from error
