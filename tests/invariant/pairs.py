"""Runs that stop and go on in every pairing of ways, trained weights and models: `python -m tests.invariant.pairs`."""

import pickle
import sys
from pathlib import Path

import torch

from arpo.callbacks.checkpoint import IterationCheckpoint
from arpo.types import RolloutBatch
from tests.invariant.ranks import on_ranks, train

WAYS = (("one", 1), ("ddp", 2), ("fsdp", 2))
CASES = ("arpo", "lora")
"""All weights are trained, or adapters."""
SAVED = "iteration_000001.ckpt"


def run(model: str, batches: list[RolloutBatch], folder: Path, way: str, ranks: int, resume: Path | None) -> None:
    """Train in every case, with a checkpoint after every iteration; `resume` holds the folders to go on from."""
    for case in CASES:
        saving = IterationCheckpoint(folder / case, every_n_iterations=1, keep=9)
        begun = None if resume is None else resume / case / SAVED
        train(model, batches, str(folder), way, ranks, case, resume=begun, extra=[saving])


def main(batches: str, directory: str, *models: str) -> None:
    torch.set_num_threads(1)
    loaded: list[RolloutBatch] = pickle.loads(Path(batches).read_bytes())
    for model in models:
        for way, ranks in WAYS:
            whole, again = (Path(directory) / f"{Path(model).name} {way} {kind}" for kind in ("whole", "again"))
            on_ranks(ranks, run, model, loaded, whole, way, ranks, None)
            on_ranks(ranks, run, model, loaded, again, way, ranks, whole)


if __name__ == "__main__":
    main(*sys.argv[1:])
