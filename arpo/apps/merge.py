"""The mean of policies: python -m arpo merge outputs/a/policy=0.5 outputs/b/policy=0.5 --to outputs/merged."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from arpo.errors import ConfigError
from arpo.models.merging import merge

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Write the weighted mean of policies and return the exit status."""
    asked = parser().parse_args(arguments)
    try:
        merge(asked.policies, asked.to)
    except OSError as error:
        raise ConfigError(f"cannot write {asked.to}: {error}; name another folder with --to") from error
    log.info("the mean of %d policies is in %s; evaluate.py takes it as checkpoint=…", len(asked.policies), asked.to)
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m arpo merge", description="Write the weighted mean of policies.")
    policies = "the folder of a policy and its weight, such as outputs/a/policy=0.5; weights add up to 1"
    made.add_argument("policies", nargs="+", type=_share, metavar="POLICY=WEIGHT", help=policies)
    made.add_argument("--to", type=Path, required=True, help="the folder to write")
    return made


def _share(word: str) -> tuple[Path, float]:
    path, _, weight = word.rpartition("=")  # a folder may have = in its name
    if not path:
        raise argparse.ArgumentTypeError(f"{word!r} is no POLICY=WEIGHT, such as outputs/a/policy=0.5")
    try:
        return Path(path), float(weight)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{weight!r} is no number, in {word!r}") from None
