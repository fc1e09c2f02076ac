"""A run that stops and goes on: `python -m tests.invariant.pairs BATCHES MODEL CASE WAY RANKS`, beside the model."""

import pickle
import sys
from pathlib import Path

import torch

from arpo.callbacks.checkpoint import IterationCheckpoint
from arpo.types import RolloutBatch
from tests.invariant.ranks import on_ranks, train

SAVED = "iteration_000001.ckpt"


def run(
    model: str, batches: list[RolloutBatch], folder: Path, case: str, way: str, ranks: int, resume: Path | None
) -> None:
    """Train with a checkpoint after every iteration, from the beginning or from a checkpoint."""
    saving = IterationCheckpoint(folder, every_n_iterations=1, keep=9)
    train(model, batches, str(folder), way, ranks, case, resume=resume, extra=[saving])


def main(batches: str, model: str, case: str, way: str, ranks: str) -> None:
    torch.set_num_threads(1)
    loaded: list[RolloutBatch] = pickle.loads(Path(batches).read_bytes())
    whole, again = (Path(f"{model} {case} {way} {kind}") for kind in ("whole", "again"))
    for folder, resume in ((whole, None), (again, whole / SAVED)):
        on_ranks(int(ranks), run, model, loaded, folder, case, way, int(ranks), resume)


if __name__ == "__main__":
    main(*sys.argv[1:])
