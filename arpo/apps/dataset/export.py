"""The command that exports episodes: python -m arpo episodes outputs/arpo_miniwob/default --to parquet."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from arpo.apps.dataset.parquet import export_parquet
from arpo.errors import ArpoError
from arpo.host.log_lines import log_to_terminal

log = logging.getLogger(__name__)


def main(words: Sequence[str]) -> int:
    """Export the episodes of a run and return the exit status: 2 where it cannot be done."""
    log_to_terminal()
    parser = argparse.ArgumentParser(prog="python -m arpo episodes", description="Write episodes as a dataset.")
    parser.add_argument("run", type=Path, help="the folder of the run, such as outputs/arpo_miniwob/default")
    parser.add_argument("--to", choices=["parquet"], required=True, help="the format")
    parser.add_argument("--out", type=Path, help="the folder to write; RUN/parquet by default")
    asked = parser.parse_args(words)
    directory = asked.out or asked.run / "parquet"
    try:
        written = export_parquet(asked.run, directory)
    except (ArpoError, OSError) as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the traceback is not
        return 2
    counts = ", ".join(f"{census.episodes} of {split}" for split, census in written.items())
    log.info("%s holds episodes: %s. datasets.load_dataset loads it, its README.md explains it", directory, counts)
    return 0
